"""Models of open_clip: from a name to a module with its weights, or to a paragraph that says what to do."""

from __future__ import annotations

import difflib
import json
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.timm_model import TimmModel
from open_clip.transformer import QuickGELU, VisionTransformer
from timm.layers import resample_abs_pos_embed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from xbench.errors import UserError
from xbench.models.components.checkpoint import fill, first_line, read_remarks, read_tensors

__all__ = ["Loaded", "activation", "first_line", "load", "load_configured", "read_config", "weights_in"]


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


def load(architecture: str, pretrained: str | None, checkpoint: str | None, image_size: int | None = None) -> Loaded:
    """Load a model whose patch tokens compare with text. The arguments are those of `xbench.models.clip.CLIP`.

    Raises:
        UserError: Unknown architecture or tag, weights that cannot be had, read or fitted, an image tower whose
            patches do not share the way of the class token, or a size that its patches do not tile.
    """
    folder = _config_folder(architecture)
    trained_with: dict[str, Any] = {}
    if folder is None:
        architecture = _known_architecture(architecture)
        if checkpoint is None:
            trained_with = _known_tag(architecture, pretrained)
    model = _build(architecture, folder, trained_with, image_size)
    path = Path(checkpoint).expanduser() if checkpoint else _own_weights(architecture, folder, trained_with)
    advice = "Give the --model.architecture that they were trained with."
    return _complete(model, architecture, pretrained if trained_with else None, path, image_size, advice)


def load_configured(
    architecture: str, config: Mapping[str, Any], path: Path, image_size: int | None, advice: str
) -> Loaded:
    """Load a model by its configuration instead of a name that open_clip knows.

    Args:
        architecture: How to call it.
        config: Content of an open_clip_config.json.
        path: File of weights.
        image_size: As for `load`.
        advice: What to do if the weights do not fit.

    Raises:
        UserError: As `load`.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
        model = _build(architecture, Path(folder), {}, image_size)
    return _complete(model, architecture, None, path, image_size, advice)


def read_config(folder: Path, option: str) -> dict[str, Any]:
    """Return the content of the open_clip_config.json in a folder; `option` is how the user named it.

    Raises:
        UserError: The file cannot be read, or is something else.
    """
    file = folder / "open_clip_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{option}: {file} cannot be read ({error}).") from error
    if not isinstance(config, dict) or "model_cfg" not in config:
        raise UserError(f"{option}: {file} lacks the key model_cfg.")
    return config


def weights_in(folder: Path, option: str) -> Path:
    """Return the file of weights in a folder; `option` is how the user named it.

    Raises:
        UserError: There is none, or several of which none has a usual name.
    """
    for usual in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"):
        if (folder / usual).is_file():
            return folder / usual
    found = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    if len(found) != 1:
        raise UserError(
            f"{option}: the folder should hold one file of weights, as open_clip_model.safetensors, and holds "
            f"{', '.join(file.name for file in found) or 'none'}. Put it there or give it by --model.checkpoint."
        )
    return found[0]


def activation(model: nn.Module) -> str:
    """Return the activation of a model: QuickGELU, or else GELU."""
    return "QuickGELU" if any(isinstance(part, QuickGELU) for part in model.modules()) else "GELU"


def _config_folder(architecture: str) -> Path | None:
    """Return the folder of a `local-dir:` or `hf-hub:` model's configuration, None for one that open_clip knows."""
    scheme, _, place = architecture.partition(":")
    if scheme == "local-dir":
        folder = Path(place).expanduser()
    elif scheme == "hf-hub":
        folder = Path(_download(architecture, place, "open_clip_config.json")).parent
    else:
        return None
    read_config(folder, f"--model.architecture {architecture}")
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
        raise _activation_error(architecture, f"The weights {pretrained}", "QuickGELU")
    return tag


def _activation_error(architecture: str, weights: str, trained_with: str) -> UserError:
    """Return the error that weights were trained with another activation than an architecture computes with."""
    other = "GELU" if trained_with == "QuickGELU" else "QuickGELU"
    if architecture.startswith(("local-dir:", "hf-hub:")):
        advice = "Correct quick_gelu in its open_clip_config.json."
    else:
        fitting = f"{architecture.removesuffix('-quickgelu')}{'-quickgelu' if trained_with == 'QuickGELU' else ''}"
        advice = f"Give --model.architecture {fitting}."
    return UserError(
        f"{weights} were trained with the activation {trained_with}, {architecture} computes with {other}, and the "
        f"features would be wrong without any other sign. {advice}",
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
    return weights_in(folder, f"--model.architecture {architecture}")


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


def _build(architecture: str, folder: Path | None, trained_with: dict[str, Any], image_size: int | None) -> Any:
    """Build a model without its weights, and without fetching any."""
    of_weights = {key: trained_with.get(key) for key in ("mean", "std", "interpolation", "resize_mode")}
    try:
        with _only_errors_logged():
            return open_clip.create_model(
                architecture if folder is None else f"local-dir:{folder}",
                load_weights=False,
                pretrained_text=False,
                force_image_size=image_size,
                force_preprocess_cfg=of_weights,
            )
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise UserError(
            f"open_clip {open_clip.__version__} cannot build {architecture} ({first_line(error)}). If its text tower "
            "comes from the Hugging Face hub and there is no network, use local-dir:FOLDER and make "
            "text_cfg.hf_model_name in its open_clip_config.json the absolute path of a folder that holds the text "
            "tower's config.json."
        ) from error


def _complete(
    model: Any, architecture: str, pretrained: str | None, path: Path, image_size: int | None, advice: str
) -> Loaded:
    """Check a model, and give it its weights."""
    _check_image_tower(model, architecture)
    _check_image_size(model.visual, architecture)
    tensors = read_tensors(path)
    if image_size is not None:
        _resize_positions(tensors, model.visual)
    _fill(model, tensors, path, architecture, advice)
    return Loaded(architecture, pretrained, path, model.eval().requires_grad_(False))


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


def _check_image_size(visual: Any, architecture: str) -> None:
    """Raise unless patches tile the image: a rest would be seen by no patch, and the map would be misplaced."""
    patches = (
        visual.trunk.patch_embed.feat_ratio(as_scalar=False) if isinstance(visual, TimmModel) else visual.patch_size
    )
    for side, patch in zip(visual.image_size, patches, strict=True):
        if side < patch or side % patch:
            raise UserError(
                f"{architecture} cuts images into patches of {patch} pixels, which do not tile an image of {side}. "
                f"Give --model.image_size a multiple of {patch}, such as {max(1, round(side / patch)) * patch}.",
                exit_status=2,
            )


def _resize_positions(tensors: dict[str, Tensor], visual: Any) -> None:
    """Interpolate the position embeddings among the weights to the patch grid of the model, as open_clip does."""
    if isinstance(visual, TimmModel):
        name, grid = "visual.trunk.pos_embed", visual.trunk.patch_embed.grid_size
        prefix = 0 if visual.trunk.no_embed_class else visual.trunk.num_prefix_tokens
    else:
        name, grid, prefix = "visual.positional_embedding", visual.grid_size, 1
    found = tensors.get(name)
    # Anything but a square grid is left for the check of the weights to name.
    if found is not None and found.ndim >= 2 and math.isqrt(count := found.shape[-2] - prefix) ** 2 == count > 0:
        positions = found.reshape(1, *found.shape[-2:])
        resized = resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=prefix)
        tensors[name] = resized.reshape(*found.shape[:-2], *resized.shape[-2:])


def _fill(model: nn.Module, found: dict[str, Tensor], path: Path, architecture: str, advice: str) -> None:
    """Give a model the weights found in a file, every name and shape as the model has them."""
    # The first is in OpenAI's own files, the second in converted ones.
    trained_with = "QuickGELU" if "input_resolution" in found else read_remarks(path).get("activation")
    if trained_with not in (None, activation(model)):
        raise _activation_error(architecture, f"The weights in {path}", trained_with)
    if trained_with is None and (named := _named_activation(path, architecture)) not in (None, activation(model)):
        raise _activation_error(architecture, f"The weights in {path}, by the tag in its name,", named)
    # OpenAI's files hold three settings among the weights; older transformers counted positions in a buffer.
    settings = ("input_resolution", "context_length", "vocab_size", "text.transformer.embeddings.position_ids")
    fill(model, found, path, architecture, ignored=settings, advice=advice)


def _named_activation(path: Path, architecture: str) -> str | None:
    """Return the activation of the weights whose tag a path names; None if it names none, or an unknown architecture's.

    Names tell where nothing in a file does: `ViT-B-16-laion2b_s34b_b88k.bin`, or the repository in the hub's cache.
    """
    plain = architecture.removesuffix("-quickgelu")
    both = (plain, f"{plain}-quickgelu")
    if not {*both} <= {*open_clip.list_models()}:
        return None
    # A file in the hub's cache is called as all others are; the folder of its repository is not.
    telling = [*path.parts[-2:], *(part for part in path.parts if part.startswith("models--"))]
    text = "/".join(telling).lower().replace("-", "_")
    tags = [(name, tag) for name in both for tag in open_clip.list_pretrained_tags_by_model(name) if tag in text]
    found = {bool(open_clip.get_pretrained_cfg(*tag).get("quick_gelu")) for tag in tags}
    return None if len(found) != 1 else "QuickGELU" if found.pop() else "GELU"
