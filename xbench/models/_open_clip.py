"""Models of open_clip: from a name to a module with its weights, or to a paragraph that says what to do."""

from __future__ import annotations

import difflib
import json
import logging
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.timm_model import TimmModel
from open_clip.transformer import QuickGELU, VisionTransformer
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from xbench.errors import UserError

__all__ = ["Loaded", "first_line", "load"]


@dataclass(frozen=True)
class Loaded:
    """A model with its weights, for inference.

    Attributes:
        architecture: Its name as open_clip writes it.
        pretrained: Tag of the weights, None when they come from a file, a folder or the hub.
        checkpoint: File that the weights were read from.
        model: open_clip's module.
    """

    architecture: str
    pretrained: str | None
    checkpoint: Path
    model: Any


def load(architecture: str, pretrained: str | None, checkpoint: str | None) -> Loaded:
    """Load a model whose patch tokens compare with text. The arguments are those of `xbench.models.clip.CLIP`.

    Raises:
        UserError: Unknown architecture or tag, weights that cannot be had, read or fitted, or an image tower whose
            patches do not share the way of the class token.
    """
    folder = _config_folder(architecture)
    trained_with: dict[str, Any] = {}
    if folder is None:
        architecture = _known_architecture(architecture)
        if checkpoint is None:
            trained_with = _known_tag(architecture, pretrained)
    model = _build(architecture, folder, trained_with)
    _check_image_tower(model, architecture)
    path = Path(checkpoint).expanduser() if checkpoint else _own_weights(architecture, folder, trained_with)
    _fill(model, _read_weights(path), path, architecture)
    return Loaded(
        architecture=architecture,
        pretrained=pretrained if trained_with else None,
        checkpoint=path,
        model=model.eval().requires_grad_(False),
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, the rest of which belongs in a traceback."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _config_folder(architecture: str) -> Path | None:
    """Return the folder of a `local-dir:` or `hf-hub:` model's configuration, None for one that open_clip knows."""
    scheme, _, place = architecture.partition(":")
    if scheme == "local-dir":
        folder = Path(place).expanduser()
    elif scheme == "hf-hub":
        folder = Path(_download(architecture, place, "open_clip_config.json")).parent
    else:
        return None
    config = folder / "open_clip_config.json"
    try:
        complete = "model_cfg" in json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--model.architecture {architecture}: {config} cannot be read ({error}).") from error
    if not complete:
        raise UserError(f"--model.architecture {architecture}: {config} lacks the key model_cfg.")
    return folder


def _known_architecture(architecture: str) -> str:
    """Return the name under which open_clip knows a model, which it lets be written `ViT-B/32` too."""
    name, known = architecture.replace("/", "-"), open_clip.list_models()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        raise UserError(
            f"--model.architecture {architecture} is no model of open_clip {open_clip.__version__}. "
            f"Nearest of its {len(known)}: {', '.join(near) or 'none'}. A folder is given as local-dir:FOLDER.",
            exit_status=2,
        )
    return name


def _known_tag(architecture: str, pretrained: str | None) -> dict[str, Any]:
    """Return what open_clip knows of a tag: where the weights are, and mean, std and resizing that go with them."""
    tag = open_clip.get_pretrained_cfg(architecture, pretrained) if pretrained else {}
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise UserError(
            f"--model.pretrained {pretrained} is no tag of weights for {architecture}; it has: {tags}. Weights in a "
            "file are given by --model.checkpoint.",
            exit_status=2,
        )
    if tag.get("quick_gelu") and not open_clip.get_model_config(architecture).get("quick_gelu"):
        raise _quick_gelu_error(architecture, f"The weights {pretrained}")
    return tag


def _quick_gelu_error(architecture: str, weights: str) -> UserError:
    return UserError(
        f"{weights} were trained with the activation QuickGELU, {architecture} computes with GELU, and the features "
        f"would be wrong without any other sign. Give --model.architecture {architecture}-quickgelu.",
        exit_status=2,
    )


def _own_weights(architecture: str, folder: Path | None, tag: dict[str, Any]) -> Path:
    """Return the file of a model's own weights, downloaded if need be."""
    if folder is None:
        try:
            return Path(open_clip.download_pretrained(tag))
        except (OSError, RuntimeError, ValueError) as error:
            raise _download_error(architecture, tag["hf_hub"] or tag["url"], error) from error
    if architecture.startswith("hf-hub:"):
        return Path(_download(architecture, architecture.removeprefix("hf-hub:"), None))
    for usual in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"):
        if (folder / usual).is_file():
            return folder / usual
    found = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    if len(found) != 1:
        raise UserError(
            f"--model.architecture {architecture}: the folder should hold one file of weights, as "
            f"open_clip_model.safetensors, and holds {', '.join(file.name for file in found) or 'none'}. Put it there "
            "or give it by --model.checkpoint."
        )
    return found[0]


def _download(architecture: str, repository: str, filename: str | None) -> str:
    try:
        return download_pretrained_from_hf(repository, filename)
    except (OSError, RuntimeError, ValueError) as error:
        raise _download_error(architecture, repository, error) from error


def _download_error(architecture: str, source: str, error: Exception) -> UserError:
    return UserError(
        f"{source} of {architecture} could not be downloaded ({first_line(error)}). Fetch it where there is a network "
        "(on huggingface.co it has that name), copy the file of weights here and give --model.checkpoint FILE; for an "
        "hf-hub: model copy the whole repository and give --model.architecture local-dir:FOLDER."
    )


def _build(architecture: str, folder: Path | None, trained_with: dict[str, Any]) -> nn.Module:
    """Build a model without its weights, and without fetching any."""
    of_weights = {key: trained_with.get(key) for key in ("mean", "std", "interpolation", "resize_mode")}
    try:
        with _only_errors_logged():
            return open_clip.create_model(
                architecture if folder is None else f"local-dir:{folder}",
                load_weights=False,
                pretrained_text=False,
                force_preprocess_cfg=of_weights,
            )
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise UserError(
            f"open_clip {open_clip.__version__} cannot build {architecture} ({first_line(error)}). If its text tower "
            "comes from the Hugging Face hub and there is no network, use local-dir:FOLDER and make "
            "text_cfg.hf_model_name in its open_clip_config.json the absolute path of a folder that holds the text "
            "tower's config.json."
        ) from error


@contextmanager
def _only_errors_logged() -> Iterator[None]:
    """Silence warnings: open_clip calls the model random, as it cannot know that the weights come next."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _check_image_tower(model: nn.Module, architecture: str) -> None:
    """Raise unless patches and pooled vector share norm and projection, so that both compare with text."""
    visual = getattr(model, "visual", None)
    if isinstance(visual, VisionTransformer):
        comparable = visual.attn_pool is None and visual.pool_type in ("tok", "avg")
    elif isinstance(visual, TimmModel) and isinstance(visual.trunk, (TimmVisionTransformer, Eva)):
        trunk = visual.trunk
        pool_in_head = hasattr(visual.head, "pool")
        comparable = trunk.attn_pool is None and trunk.global_pool in ("token", "avg") and not pool_in_head
    else:
        comparable = False
    if not comparable or not isinstance(model, (open_clip.CLIP, open_clip.CustomTextCLIP)):
        raise UserError(
            f"--model.architecture {architecture} has no patch tokens that compare with text: its image tower is no "
            "vision transformer, or pools by attention (ResNet, ConvNeXt, SigLIP, CoCa ...). Choose a plain one such "
            "as ViT-B-16-quickgelu.",
            exit_status=2,
        )


def _fill(model: nn.Module, found: dict[str, Tensor], path: Path, architecture: str) -> None:
    """Give a model the weights found in a file, every name and shape as the model has them."""
    if "input_resolution" in found and not any(isinstance(part, QuickGELU) for part in model.modules()):
        raise _quick_gelu_error(architecture, f"OpenAI's weights in {path}")
    wanted = model.state_dict()
    # OpenAI's files hold three settings among the weights; older transformers counted positions in a buffer.
    settings = {"input_resolution", "context_length", "vocab_size", "text.transformer.embeddings.position_ids"}
    found = {name: tensor for name, tensor in found.items() if name in wanted or name not in settings}
    for name in found.keys() & {"logit_scale", "logit_bias"} & wanted.keys():
        if found[name].numel() == 1:
            found[name] = found[name].reshape(wanted[name].shape)
    misfits = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "of another shape": [
            f"{name} {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in found and found[name].shape != tensor.shape
        ],
    }
    if any(misfits.values()):
        listed = "; ".join(
            f"{len(names)} {kind} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
            for kind, names in misfits.items()
            if names
        )
        raise UserError(
            f"The weights in {path} do not fit {architecture}: {listed}, of {len(wanted)} tensors. Give the "
            "--model.architecture that they were trained with."
        )
    model.load_state_dict(found)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights without running anything in it."""
    if not path.is_file():
        raise UserError(f"The file of weights {path} does not exist. Check --model.checkpoint.")
    content: Any
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        elif _is_torchscript(path):
            raise UserError(
                f"{path} is a TorchScript archive, as OpenAI published them: a program, which is not run here. Leave "
                "--model.checkpoint out so that the tag fetches plain weights, or, if you trust the file, keep its "
                "weights alone: torch.save(torch.jit.load(FILE, map_location='cpu').state_dict(), NEW_FILE)."
            )
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} is no file of plain weights, and reading it further could run code hidden in it. If you trust the "
            "file, keep its weights alone: torch.save(torch.load(FILE, weights_only=False)['state_dict'], NEW_FILE)."
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, LookupError) as error:
        raise UserError(f"The file of weights {path} cannot be read ({first_line(error)}). Fetch it again.") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path} holds no state dict: names of tensors and the tensors, alone or under `state_dict`.")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())
