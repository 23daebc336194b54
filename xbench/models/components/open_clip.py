"""What CLIP and BiomedCLIP share: loading a model of open_clip, encoding pairs of prompts, scores and preprocessing."""

from __future__ import annotations

import difflib
import json
import logging
import math
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.timm_model import TimmModel
from open_clip.transformer import QuickGELU, VisionTransformer
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from xbench.errors import UserError
from xbench.geometry.preprocessing import CentreCrop, PillowResize, Preprocessing
from xbench.models.base import VLM
from xbench.models.components.checkpoint import fill, first_line, read_remarks, read_tensors
from xbench.models.components.clip_saliency import Saliency, check_saliency, features_and_maps
from xbench.protocol.prompts import fill_templates
from xbench.runtime.digests import file_sha256
from xbench.types import ModelOutput

ResizeMode = Literal["shortest", "longest", "squash"]


@dataclass(frozen=True)
class Loaded:
    """A model with its weights, for inference; `pretrained` is their tag, None for a file, a folder or the hub."""

    architecture: str
    pretrained: str | None
    checkpoint: Path
    model: Any


class OpenCLIP(VLM):
    """A model of open_clip; a subclass loads it. Arguments are those of `xbench.models.CLIP`.

    Every finding gets a pair of prompts, present and absent: its logit is the difference of the two scaled cosines,
    its probability their softmax, and its map that of the present prompt.
    """

    def __init__(
        self,
        loaded: Loaded,
        templates: tuple[str, str],
        resize_mode: ResizeMode | None,
        saliency: Saliency,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.templates = templates
        self.saliency = saliency
        self.architecture, self.pretrained, self.checkpoint = loaded.architecture, loaded.pretrained, loaded.checkpoint
        self.model = loaded.model
        check_saliency(self.model.visual, saliency, self.architecture)
        self.preprocessing = preprocessing(self.model.visual.preprocess_cfg, resize_mode, self.architecture)
        self.image_size = self.model.visual.image_size[0]

    def default_prompts(self, finding: str) -> list[str]:
        """Return the present and the absent prompt."""
        return fill_templates(self.templates, finding)

    def word_prompts(self, finding: str, texts: Sequence[str]) -> list[str]:
        """Return the texts as prompts of the present finding, and the absent prompt last.

        Names and phrases go into the template; what says more than that stands for itself.
        """
        absent = self.default_prompts(finding)[1]
        if self.prompt_source in ("name", "phrase"):
            texts = [self.templates[0].format(finding=text) for text in texts]
        return [*texts, absent]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C pairs (or C single prompts) as `encode_tokens` does.

        Of more than two prompts the last is the absent one, and the mean direction of the others the present one.

        Raises:
            UserError: A prompt is too long for the model, some classes lack the absent one, or there is no tokeniser.
        """
        flat = [prompt for of_finding in prompts for prompt in of_finding]
        length = self._tokenizer.context_length
        input_ids = self._tokenizer(flat)
        # open_clip cuts long prompts off silently. With twice the room a prompt that fits gains nothing but padding.
        longer = self._tokenizer(flat, context_length=2 * length)
        padding = self._tokenizer([""], context_length=2 * length).mode().values
        cut = (longer != padding).sum(dim=1) != (input_ids != padding).sum(dim=1)
        if cut.any():
            raise UserError(
                f"The prompt {flat[int(cut.int().argmax())]!r} is longer than the {length} tokens that "
                f"{self.architecture} reads. Shorten --model.templates, the name of the finding, or the text in "
                "--model.prompts."
            )
        counts = [len(of_finding) for of_finding in prompts]
        if {*counts} == {1}:
            return self.encode_tokens(input_ids)
        if {*counts} == {2}:
            return self.encode_tokens(input_ids.unflatten(0, (-1, 2)))
        if min(counts) < 2:
            raise UserError(f"{self.name} takes an absent prompt for every finding or for none.")
        # A file of prompts may word one finding by more texts than another.
        classes = self.encode_tokens(input_ids).split(counts)
        present = torch.stack([F.normalize(texts[:-1].mean(dim=0), dim=-1) for texts in classes])
        return torch.stack([present, torch.stack([texts[-1] for texts in classes])], dim=1)

    def queries_depend_on(self) -> dict[str, Any]:
        """Return digest and architecture of the weights, and the token ids."""
        tokens = self._tokenizer([prompt for of_finding in self.prompts for prompt in of_finding])
        return {
            "architecture": self.architecture,
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "tokens": tokens.tolist(),
        }

    def weights(self) -> Mapping[str, Tensor]:
        """Return the tensors under open_clip's names."""
        result: Mapping[str, Tensor] = self.model.state_dict()
        return result

    def remarks(self) -> Mapping[str, str]:
        """Return the activation, QuickGELU or GELU: with the other one the weights would fit as well."""
        return {"activation": _activation(self.model)}

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode tokenised prompts.

        Args:
            input_ids: (C, L) or (C, 1, L) for one prompt per class, (C, 2, L) for pairs of present and absent; int64.
            attention_mask: Same shape. open_clip derives its own mask from the padding, so this one must agree.

        Returns:
            Text vectors of unit length, (C, D) or (C, 2, D) float32: the queries of `forward`.

        Raises:
            UserError: Not one or two prompts per class, or an attention mask that open_clip cannot follow.
        """
        if input_ids.ndim == 3 and input_ids.shape[1] == 1:
            input_ids = input_ids[:, 0]
            attention_mask = None if attention_mask is None else attention_mask[:, 0]
        if input_ids.ndim not in (2, 3) or (input_ids.ndim == 3 and input_ids.shape[1] != 2):
            raise UserError(
                f"{self.name} takes one prompt per class (C, L) or a pair of present and absent (C, 2, L), got token "
                f"ids of shape {tuple(input_ids.shape)}. Give two --model.templates."
            )
        config = getattr(getattr(self.model, "text", None), "config", None)
        if attention_mask is not None and config is not None:
            followed = input_ids != config.pad_token_id
            if not torch.equal(attention_mask.bool(), followed):
                raise UserError(
                    f"{self.name} reads every token but padding (id {config.pad_token_id}), and the attention mask "
                    "says otherwise. Leave the mask out or pad with that id."
                )
        features = self.model.encode_text(input_ids.flatten(0, -2).to(self.device))
        result: Tensor = F.normalize(features.float(), dim=-1).unflatten(0, input_ids.shape[:-1])
        return result

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images against text vectors.

        Args:
            images: (B, 3, h, w) float, normalised.
            queries: From `encode_tokens`. For pairs (C, 2, D), a class is scored against its own absent prompt; for
                single prompts (C, D), the probabilities are the softmax over the C classes, as in the CLIP paper.

        Returns:
            Logits and probabilities (B, C); saliency (B, C, rows, columns) of the patch grid. All float32.
        """
        present = queries[:, 0] if queries.ndim == 3 else queries
        pooled, saliency = features_and_maps(self.model, images, present, self.saliency)
        # Under autocast the products below would fall back to 16 bits, too few to rank cosines.
        with torch.autocast(images.device.type, enabled=False):
            pooled = F.normalize(pooled.float(), dim=-1)
            scale = self.model.logit_scale.float().exp()
            cosines = torch.einsum("bd,c...d->bc...", pooled, queries)
            if queries.ndim == 3:
                logits = scale * (cosines[..., 0] - cosines[..., 1])
                probabilities = torch.sigmoid(logits)
            else:
                bias = 0 if self.model.logit_bias is None else self.model.logit_bias.float()
                logits = scale * cosines + bias
                probabilities = logits.softmax(dim=1)
        return ModelOutput(logits=logits, probabilities=probabilities, saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        """Return architecture, tag, weights, size, definition of the maps, and prompts."""
        return {
            "architecture": self.architecture,
            "pretrained": self.pretrained,
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "image_size": self.image_size,
            "saliency": self.saliency,
            **super().provenance(),
        }

    @cached_property
    def _tokenizer(self) -> Any:
        return self._load_tokenizer()

    @abstractmethod
    def _load_tokenizer(self) -> Any:
        """Return a tokeniser of open_clip, or raise a UserError. Token ids can be encoded without one."""


def load(architecture: str, pretrained: str | None, checkpoint: str | None, image_size: int | None = None) -> Loaded:
    """Load a model whose patch tokens compare with text. Arguments and errors are those of `xbench.models.CLIP`."""
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
    """Load a model by the content of an open_clip_config.json, and weights from a file.

    `architecture` is how to call it, `advice` what to do if the weights do not fit.
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


def _activation(model: nn.Module) -> str:
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
        path: str = download_pretrained_from_hf(repository, filename)
        return path
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
    if trained_with not in (None, _activation(model)):
        raise _activation_error(architecture, f"The weights in {path}", trained_with)
    if trained_with is None and (named := _named_activation(path, architecture)) not in (None, _activation(model)):
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


class _FitInSquare(PillowResize):
    """Resize the longer side and pad the shorter one evenly, as open_clip does in its mode `longest`."""

    def __init__(self, size: int, interpolation: Literal["bilinear", "bicubic"], fill: int) -> None:
        super().__init__(size, "longest", interpolation)
        self.fill = fill

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        top, left = self._offset(img.shape)
        resized = super().apply(img, **params)
        square = np.full((self.size, self.size), self.fill, np.uint8)
        square[top : top + resized.shape[0], left : left + resized.shape[1]] = resized
        return square

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        top, left = self._offset(params["shape"])
        moved = super().apply_to_keypoints(keypoints, **params)
        moved[:, 0] += left
        moved[:, 1] += top
        return moved

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        ratio = max(shape[:2]) / self.size
        # Here open_clip rounds; for `shortest` it follows torchvision, which truncates.
        return round(shape[0] / ratio), round(shape[1] / ratio)

    def _offset(self, shape: Sequence[int]) -> tuple[int, int]:
        height, width = self._target(shape)
        return (self.size - height) // 2, (self.size - width) // 2


def preprocessing(config: dict[str, Any], resize_mode: ResizeMode | None, architecture: str) -> Preprocessing:
    """Return what open_clip's evaluation transform does with `preprocess_cfg`."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise UserError(f"{architecture} takes images of {height} x {width} pixels; only square inputs are supported.")
    interpolation: Literal["bilinear", "bicubic"] = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    geometries: dict[str, list[PillowResize | CentreCrop]] = {
        "shortest": [PillowResize(height, "shortest", interpolation), CentreCrop(height)],
        "longest": [_FitInSquare(height, interpolation, config["fill_color"])],
        "squash": [PillowResize(height, "both", interpolation)],
    }
    return Preprocessing(geometries[resize_mode or config["resize_mode"]], config["mean"], config["std"])
