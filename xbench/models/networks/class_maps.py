"""Maps of a classifier: where the output of a layer raises the logit of a class.

- `gradcam`: activations times the mean gradient of their channel, summed over channels, positive part (R. R. Selvaraju
  et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017).
- `hirescam`: activations times their own gradients, summed over channels (R. L. Draelos and L. Carin, "Use HiResCAM
  instead of Grad-CAM for faithful explanations of convolutional neural networks", 2020). If only pooling or flattening
  and one linear layer follow, its cells sum to the logit without bias, so it highlights only what the network used.
  Grad-CAM averages gradients and may highlight other places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from xbench.runtime.errors import UsageError

Method = Literal["gradcam", "hirescam"]


def logits_and_maps(
    network: nn.Module, layer: str, images: Tensor, classes: Sequence[int], method: Method
) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) of all classes and maps (B, C, rows, columns) of some, float32, from one forward pass.

    Each class takes a backward pass to the layer. The images of a batch must not interact after it.
    """
    outputs: list[Tensor] = []

    def cut(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        # A copy, because the next layer may change it in place, like DenseNet's ReLU.
        return outputs[-1].clone()

    # The test loop disables gradients, and tensors from inference mode cannot take part in one.
    with network.get_submodule(layer).register_forward_hook(cut), torch.inference_mode(False), torch.enable_grad():
        logits = network(images.clone())
        gradients = [torch.autograd.grad(logits[:, one].sum(), outputs[-1], retain_graph=True)[0] for one in classes]
    activations, *weights = (_grid(part.detach(), network) for part in (outputs[-1], *gradients))
    if method == "gradcam":
        weights = [part.mean(dim=(2, 3), keepdim=True) for part in weights]
    saliency = torch.stack([(part * activations).sum(dim=1) for part in weights], dim=1)
    return logits.detach().float(), saliency.clamp(min=0) if method == "gradcam" else saliency


def _grid(output: Tensor, network: nn.Module) -> Tensor:
    """Return a layer's output as (B, D, rows, columns) float32; `output_fmt` is timm's, and patches come last."""
    if output.ndim == 4:
        return (output.permute(0, 3, 1, 2) if getattr(network, "output_fmt", "") == "NHWC" else output).float()
    side = math.isqrt(output.shape[1])
    return output[:, -(side**2) :].mT.reshape(*output.shape[::2], side, side).float()


@torch.no_grad()
def mapped_layer(network: nn.Module, images: Tensor, name: str | None) -> str:
    """Return the name of the layer to map, by default the last one with a grid of more than one cell.

    If a transformer's classifier reads a class token, the patches after the last attention have no gradient, so the
    default is the norm before it. Raises a UserError if no layer fits.
    """
    shapes, names = dict[str, Any](), {module: path for path, module in network.named_modules()}

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            shapes.pop(names[module], None)
            shapes[names[module]] = output.shape

    with register_module_forward_hook(keep):
        network(images)
    tokens = [path for path, shape in shapes.items() if len(shape) == 3]
    cells = slice(1, 3) if getattr(network, "output_fmt", "") == "NHWC" else slice(2, 4)
    layers = [path for path, shape in shapes.items() if len(shape) == 4 and math.prod(shape[cells]) > 1]
    if name is not None:
        layers = [path for path in (*layers, *tokens) if path == name]
    elif [*shapes][-1:] == tokens[-1:]:
        layers = [path for path in tokens if path.endswith((".norm1", ".ln_1"))]
    if not layers:
        known = ", ".join([path for path in shapes if path.count(".") < 2][-12:])
        raise UsageError(f"--model.layer {name}: give a layer that returns a grid or tokens, such as {known}.")
    return layers[-1]
