"""CLIP-style models of open_clip.

A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. The score is
exp(logit_scale) times the cosine of image and text vector. The map is one of `xbench.models.networks.clip_saliency`.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import albumentations as A
import open_clip
import torch
import torch.nn.functional as F
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.timm_model import TimmModel
from open_clip.transformer import QuickGELU, VisionTransformer
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn
from transformers import dynamic_module_utils

from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.models.base import check_image_size, too_long
from xbench.models.networks.checkpoint import config_of, explained, fill, read_remarks, read_tensors
from xbench.models.networks.clip_saliency import Saliency, check_saliency, features_and_maps
from xbench.models.networks.dual_encoder import DualEncoder, compare
from xbench.runtime.errors import UsageError, UserError
from xbench.types import ModelOutput

ResizeMode = Literal["shortest", "longest", "squash"]


class CLIP(DualEncoder):
    """A CLIP-style model of open_clip with a vision transformer as image tower.

    A finding's logit is the difference of the scaled cosines of its present and absent prompt, its probability their
    softmax, and its map that of the present prompt.

    Args:
        architecture: open_clip's name of the model. OpenAI, MetaCLIP and DFN weights need the one with `-quickgelu`.
            `local-dir:FOLDER` and `hf-hub:ORGANISATION/NAME` load configuration, weights and tokenizer.
        pretrained: open_clip's tag of the weights. Ignored with `checkpoint`, `local-dir:` and `hf-hub:`.
        checkpoint: File of weights to load instead (.safetensors, .pt, .pth or .bin), with open_clip's default mean,
            std and resizing unless the architecture is a `local-dir:` or `hf-hub:` one.
        templates: Present and absent prompt, each with `{finding}`. Other `prompts` replace the present one by their
            mean.
        resize_mode: `shortest` resizes the shorter side and crops the longer one, `longest` resizes the longer side and
            pads with black, `squash` stretches. By default as in training.
        image_size: Side of the square input in pixels, a multiple of the patch size. Other sizes than the
            architecture's interpolate the position embeddings.
        saliency: Definition of the maps, see `xbench.models.networks.clip_saliency`.
    """

    stated, checkpoint_part = "architecture pretrained image_size saliency", "model"
    title: ClassVar[str | None] = None
    """Name of the architecture, if not the option."""
    advice: ClassVar[str] = "Give the --model.architecture that they were trained with."
    """Advice for weights that do not fit."""

    def __init__(
        self,
        architecture: str = "ViT-B-16-quickgelu",
        pretrained: str | None = "openai",
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("a chest x-ray showing {finding}", "a chest x-ray without {finding}"),
        resize_mode: ResizeMode | None = None,
        image_size: int | None = None,
        saliency: Saliency = "patch",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        folder, tag = _config_folder(architecture), dict[str, Any]()
        if folder is None:
            architecture = _known_architecture(architecture)
            if checkpoint is None:
                tag = _known_tag(architecture, pretrained)
        self.architecture, self.pretrained = self.title or architecture, pretrained if tag else None
        self.templates, self.saliency = ([templates[0]], [templates[1]]), saliency
        # Products of gradients compare only within a map.
        self.map_scale = "none" if saliency in ("grad_attention", "legrad") else "cosine"
        self.model = _build(self.architecture, folder, tag, image_size)
        visual = self.model.visual
        timm = isinstance(visual, TimmModel)
        patches = visual.trunk.patch_embed.feat_ratio(as_scalar=False) if timm else visual.patch_size
        # No patch would see the remaining pixels, and the map would be misplaced.
        for side, patch in zip(visual.image_size, patches, strict=True):
            check_image_size(side, patch)
        check_saliency(visual, saliency, self.architecture)
        self.preprocessing = preprocessing(visual.preprocess_cfg, resize_mode, self.architecture)
        self.image_size = visual.image_size[0]
        # Download last, after all checks.
        own = None if checkpoint else _own_weights(self.architecture, folder, tag)
        self.checkpoint, self._positions = own or Path(checkpoint or "").expanduser(), image_size is not None
        self.read_weights(self.model, self.checkpoint)

    def read_weights(self, model: Any, path: Path) -> None:
        tensors = read_tensors(path)
        if self._positions:
            _resize_positions(tensors, model.visual)
        told = f"The weights in {path}"
        # OpenAI's own files have the first, converted files the second.
        trained_with = "QuickGELU" if "input_resolution" in tensors else read_remarks(path).get("activation")
        if trained_with is None:
            told += ", by the tag in its name,"
            trained_with = _named_activation(path, self.architecture)
        _check_activation(self.architecture, _activation(model), told, trained_with)
        # OpenAI's files store three settings as weights; older transformers store a position buffer.
        settings = ("input_resolution", "context_length", "vocab_size", "text.transformer.embeddings.position_ids")
        fill(model, tensors, path, self.architecture, settings, self.advice)

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        flat = list(texts)
        length = self._tokenizer.context_length
        input_ids = self._tokenizer(flat)
        # open_clip truncates silently. With twice the length, a prompt that fits gains only padding.
        longer = self._tokenizer(flat, context_length=2 * length)
        padding = self._tokenizer([""], context_length=2 * length).mode().values
        cut = (longer != padding).sum(dim=1) != (input_ids != padding).sum(dim=1)
        if cut.any():
            too_long(flat[int(cut.int().argmax())], length, self.architecture)
        return self.encode_tokens(input_ids)

    def remarks(self) -> Mapping[str, str]:
        """Return the activation, QuickGELU or GELU, because weights load with either."""
        return {"activation": _activation(self.model)}

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode token ids (C, L), (C, 1, L) or, for pairs of present and absent, (C, 2, L) int64.

        Return unit vectors (C, D) or (C, 2, D) float32. A mask must equal that of the padding.
        """
        ids = input_ids[:, None] if input_ids.ndim == 2 else input_ids
        if ids.ndim != 3 or ids.shape[1] > 2:
            raise UserError(
                f"{self.name} takes one prompt per class (C, L) or a pair of present and absent (C, 2, L), not token "
                f"ids of shape {tuple(input_ids.shape)}. Give two --model.templates."
            )
        config = getattr(getattr(self.model, "text", None), "config", None)
        padding = None if config is None else config.pad_token_id
        followed = attention_mask is None or padding is None or torch.equal(attention_mask.bool(), input_ids != padding)
        if not followed:
            raise UserError(
                f"{self.name} reads all tokens except padding (id {padding}), but the attention mask differs. Omit the "
                "mask or pad with that id."
            )
        vectors: Tensor = self.encode_vectors(ids.flatten(0, 1).to(self.device)).unflatten(0, ids.shape[:2])
        return vectors[:, 0] if ids.shape[1] == 1 else vectors

    def encode_vectors(self, input_ids: Tensor) -> Tensor:
        vectors: Tensor = self.model.encode_text(input_ids)
        return F.normalize(vectors.float(), dim=-1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against text vectors, pairs (C, 2, D) or (C, D).

        Without pairs, probabilities are the softmax over the C classes, as in the CLIP paper.
        """
        present = queries[:, 0] if queries.ndim == 3 else queries
        pooled, saliency = features_and_maps(self.model, images, present, self.saliency)
        logits = self.model.logit_scale.float().exp() * compare(pooled, queries)
        if queries.ndim == 3:
            return ModelOutput(logits, torch.sigmoid(logits), saliency)
        logits = logits + (0 if self.model.logit_bias is None else self.model.logit_bias.float())
        return ModelOutput(logits, logits.softmax(dim=1), saliency)

    @cached_property
    def _tokenizer(self) -> Any:
        """open_clip's tokenizer, loaded on first use because token ids can be encoded without it."""
        folder = _config_folder(self.architecture)
        config = read_config(folder)["model_cfg"] if folder else open_clip.get_model_config(self.architecture)
        # open_clip's own tokenizers do not accept the option.
        of_transformers = config.get("text_cfg", {}).get("hf_tokenizer_name")
        options = {"trust_remote_code": False} if of_transformers else {}
        advice = (
            "Without a network, put its files into one folder with the model's open_clip_config.json and give "
            "--model.architecture local-dir:FOLDER."
        )
        with explained(f"The tokenizer of {self.architecture} cannot be loaded", advice):
            return open_clip.get_tokenizer(self.architecture, **options)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the open_clip_config.json of a folder; raise a UserError if it is unreadable."""
    return config_of(folder, "open_clip", "its authors", ("model_cfg",), "open_clip_config.json")


def weights_in(folder: Path, option: str) -> Path:
    """Return the only file of weights, or the one with a usual name, in a folder given by `option`."""
    for usual in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"):
        if (folder / usual).is_file():
            return folder / usual
    files = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    if len(files) != 1:
        raise UserError(
            f"{option}: the folder should contain one file of weights, such as open_clip_model.safetensors, but "
            f"contains {', '.join(file.name for file in files) or 'none'}. Put it there or give it by "
            "--model.checkpoint."
        )
    return files[0]


def _activation(model: nn.Module) -> str:
    return "QuickGELU" if any(isinstance(part, QuickGELU) for part in model.modules()) else "GELU"


def _check_activation(architecture: str, computes_with: str, weights: str, trained_with: str | None) -> None:
    if trained_with in (None, computes_with):
        return
    if architecture.startswith(("local-dir:", "hf-hub:")):
        advice = "Correct quick_gelu in its open_clip_config.json."
    else:
        fitting = f"{architecture.removesuffix('-quickgelu')}{'-quickgelu' if trained_with == 'QuickGELU' else ''}"
        advice = f"Give --model.architecture {fitting}."
    raise UsageError(
        f"{weights} were trained with the activation {trained_with}, but {architecture} uses {computes_with}, so its "
        f"features would be wrong without an error. {advice}"
    )


def _downloaded(architecture: str, source: str, download: Callable[[], str]) -> Path:
    advice = (
        "Download it on a machine with a network, then give the file of weights as --model.checkpoint FILE, or the "
        "whole repository as --model.architecture local-dir:FOLDER to CLIP or --model.checkpoint FOLDER to BiomedCLIP."
    )
    with explained(f"{source} of {architecture} could not be downloaded", advice):
        return Path(download())


def _from_hub(architecture: str, filename: str | None = None) -> Path:
    name = architecture.removeprefix("hf-hub:")
    return _downloaded(architecture, f"huggingface.co/{name}", lambda: download_pretrained_from_hf(name, filename))


def _build(architecture: str, folder: Path | None, tag: Mapping[str, Any], image_size: int | None) -> Any:
    """Build a model whose patch tokens compare with text, without loading or downloading weights."""
    silenced, seconds_to_agree = logging.root.manager.disable, dynamic_module_utils.TIME_OUT_REMOTE_CODE
    advice = (
        "If its text tower is on the Hugging Face hub and there is no network, use local-dir:FOLDER and set "
        "text_cfg.hf_model_name in its open_clip_config.json to the absolute path of a folder with the text tower's "
        "config.json."
    )
    try:
        # open_clip cannot pass trust_remote_code; with a time limit of 0, transformers refuses instead of asking.
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        # Silence open_clip's warning about random weights, because they are loaded next.
        logging.disable(max(silenced, logging.WARNING))
        with explained(f"open_clip {open_clip.__version__} cannot build {architecture}", advice):
            model = open_clip.create_model(
                architecture if folder is None else f"local-dir:{folder}",
                load_weights=False,
                pretrained_text=False,
                force_image_size=image_size,
                force_preprocess_cfg={key: tag.get(key) for key in ("mean", "std", "interpolation", "resize_mode")},
            )
    finally:
        logging.disable(silenced)
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds_to_agree
    visual, comparable = getattr(model, "visual", None), False
    # Patches and pooled vector must share norm and projection, so that both compare with text.
    if isinstance(visual, VisionTransformer):
        comparable = visual.attn_pool is None and visual.pool_type in ("tok", "avg")
    elif isinstance(visual, TimmModel) and isinstance(trunk := visual.trunk, (TimmVisionTransformer, Eva)):
        comparable = trunk.attn_pool is None and trunk.global_pool in ("token", "avg")
        comparable &= not hasattr(visual.head, "pool")
    if not comparable or not isinstance(model, (open_clip.CLIP, open_clip.CustomTextCLIP)):
        raise UsageError(
            f"--model.architecture {architecture} has no patch tokens that compare with text, because its image tower "
            "is not a vision transformer or pools by attention (ResNet, ConvNeXt, SigLIP, CoCa ...). Choose a plain "
            "one such as ViT-B-16-quickgelu."
        )
    return model


def _resize_positions(tensors: dict[str, Tensor], visual: Any) -> None:
    if isinstance(visual, TimmModel):
        name, grid = "visual.trunk.pos_embed", visual.trunk.patch_embed.grid_size
        prefix = 0 if visual.trunk.no_embed_class else visual.trunk.num_prefix_tokens
    else:
        name, grid, prefix = "visual.positional_embedding", visual.grid_size, 1
    stored = tensors.get(name)
    # Other grids fail the check of the weights, which reports them.
    if stored is not None and stored.ndim >= 2 and math.isqrt(count := stored.shape[-2] - prefix) ** 2 == count > 0:
        positions = stored.reshape(1, *stored.shape[-2:])
        resized = resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=prefix)
        tensors[name] = resized.reshape(*stored.shape[:-2], *resized.shape[-2:])


def _named_activation(path: Path, architecture: str) -> str | None:
    """Return the activation of the weights whose tag is in a path, such as `ViT-B-16-laion2b_s34b_b88k.bin`."""
    plain = architecture.removesuffix("-quickgelu")
    both = (plain, f"{plain}-quickgelu")
    if not {*both} <= {*open_clip.list_models()}:
        return None
    # In the hub's cache all files have the same name, but the repository's folder does not.
    telling = [*path.parts[-2:], *(part for part in path.parts if part.startswith("models--"))]
    text = "/".join(telling).lower().replace("-", "_")
    tags = [(name, tag) for name in both for tag in open_clip.list_pretrained_tags_by_model(name) if tag in text]
    found = {bool(open_clip.get_pretrained_cfg(*tag).get("quick_gelu")) for tag in tags}
    return None if len(found) != 1 else "QuickGELU" if found.pop() else "GELU"


class _ResizeLonger(PillowResize):
    """Resize the longer side and round the other one, as open_clip does only for `longest`."""

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        ratio = max(shape[:2]) / self.size
        return round(shape[0] / ratio), round(shape[1] / ratio)


def preprocessing(config: dict[str, Any], resize_mode: ResizeMode | None, architecture: str) -> Preprocessing:
    """Return open_clip's evaluation transform of a `preprocess_cfg`."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise UserError(f"{architecture} takes images of {height} x {width} pixels; only square inputs are supported.")
    interpolation: Literal["bilinear", "bicubic"] = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    pad = A.PadIfNeeded(height, height, fill=config["fill_color"])
    geometries: dict[str, list[A.BasicTransform]] = {
        "shortest": [PillowResize(height, "shortest", interpolation), CenterCrop(height)],
        "longest": [_ResizeLonger(height, "longest", interpolation), pad],
        "squash": [PillowResize(height, "both", interpolation)],
    }
    return Preprocessing(geometries[resize_mode or config["resize_mode"]], config["mean"], config["std"])


def _config_folder(architecture: str) -> Path | None:
    scheme, _, place = architecture.partition(":")
    if scheme not in ("local-dir", "hf-hub"):
        return None
    hub = scheme == "hf-hub"
    folder = _from_hub(architecture, "open_clip_config.json").parent if hub else Path(place).expanduser()
    read_config(folder)
    return folder


def _known_architecture(architecture: str) -> str:
    name, known = architecture.replace("/", "-"), open_clip.list_models()
    if name not in known:
        near = ", ".join(difflib.get_close_matches(name, known, n=5, cutoff=0.4)) or "none"
        raise UsageError(
            f"--model.architecture {architecture} is not a model of open_clip {open_clip.__version__}. Similar names "
            f"of its {len(known)}: {near}. Give a folder as local-dir:FOLDER."
        )
    return name


def _known_tag(architecture: str, pretrained: str | None) -> dict[str, Any]:
    tag: dict[str, Any] = open_clip.get_pretrained_cfg(architecture, pretrained) if pretrained else {}
    if not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise UsageError(
            f"--model.pretrained {pretrained} is not a tag of weights for {architecture}; it has: {tags}. Give weights "
            "in a file by --model.checkpoint."
        )
    computes_with = "QuickGELU" if open_clip.get_model_config(architecture).get("quick_gelu") else "GELU"
    trained_with = "QuickGELU" if tag.get("quick_gelu") else None
    _check_activation(architecture, computes_with, f"The weights {pretrained}", trained_with)
    return tag


def _own_weights(architecture: str, folder: Path | None, tag: Mapping[str, Any]) -> Path:
    if architecture.startswith("hf-hub:"):
        return _from_hub(architecture)
    if folder is not None:
        return weights_in(folder, f"--model.architecture {architecture}")
    source = f"huggingface.co/{tag['hf_hub']}" if tag["hf_hub"] else tag["url"]
    return _downloaded(architecture, source, lambda: open_clip.download_pretrained(tag))
