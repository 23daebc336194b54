"""Checkpoints in the layouts of the models' authors, with weights that depend on their names alone."""

from __future__ import annotations

import copy
import json
import math
import re
import string
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
from book_files import official_weights, write_official
from deterministic import drawn, quick_weight, weight
from kad_reference import BERT, Decoder, Text
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, SiglipConfig, SiglipModel
from transformers.convert_slow_tokenizer import import_protobuf

from xbench.findings.names import FINDINGS
from xbench.findings.prompts import prompts_in_style
from xbench.models.maps import radzero
from xbench.models.maps.biomedclip import _MODEL as _BIOMEDCLIP

# Of networks that are not full.
BLOCKS = 2

# Every word of ASCII letters is tokens of this vocabulary, and no two words are the same ones. The words of the
# package's long texts are one token each, which makes encoding faster; names of findings have one for each letter.
_LETTERS = (*string.ascii_lowercase, *string.digits)
_FINDINGS = {finding for findings in FINDINGS.values() for finding in findings}
_TEXTS = (text for style in ("description", "aspects") for name in _FINDINGS for text in prompts_in_style(style, name))
_words = partial(re.findall, "[a-z]{2,}")
_WORDS = sorted({*_words(" ".join(_TEXTS).lower())} - {*_words(" ".join(_FINDINGS).lower())})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS, *(f"##{letter}" for letter in _LETTERS), "-"]
VOCABULARY += _WORDS
SMALL_CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 224, "layers": 2, "width": 48, "head_width": 16, "patch_size": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


def write_checkpoint(model: str, folder: Path, full: bool = False) -> dict[str, str]:
    """Return constructor arguments. Unless `full` (released size), some models need `small_networks.shrink`."""
    return _WRITERS[model](folder, full)


def _carzero(folder: Path, full: bool) -> dict[str, str]:
    with torch.device("meta"):
        decoder = nn.Module()
        decoder.layers = nn.ModuleList(nn.TransformerDecoderLayer(768, 4, 1024) for _ in range(4))
        head = {"0": nn.Linear(768, 1024), "3": nn.Linear(1024, 512), "6": nn.Linear(512, 256), "9": nn.Linear(256, 1)}
        parts = {
            "img_encoder.model": _vit(full),
            # The last four layers of which count alike.
            "text_encoder.model": _bert(full, 28996, layers=4),
            "fusion_module.decoder": decoder,
            "fusion_module.mlp_head": nn.ModuleDict(head),
        }
    tensors = _draw(parts, full, "CARZero.")
    for leaf in ("weight", "bias"):
        name = f"fusion_module.decoder.norm.{leaf}"
        tensors[f"CARZero.{name}"] = tensors[f"CARZero.{name.replace('.norm', '_norm')}"] = weight(name, (768,))
    tensors["CARZero.fusion_module.logit_scale"] = weight("logit_scale", ()).squeeze()
    path = folder / "CARZero_best_model.ckpt"
    torch.save({"state_dict": tensors, "epoch": 3, "global_step": 7}, path)
    return {"checkpoint": str(path), "text_encoder": _tokeniser(folder / "bert")}


def _gloria(model: str, folder: Path, full: bool) -> dict[str, str]:
    """Write the checkpoint of GLoRIA or AFLoc, with a ResNet-18 unless it is full."""
    with torch.device("meta"):
        network = resnet50() if full else resnet18()
        width, network.fc = network.fc.in_features, nn.Identity()
        parts = {
            "img_encoder.model": network,
            "img_encoder.global_embedder": nn.Linear(width, 768),
            "img_encoder.local_embedder": nn.Conv2d(width // 2, 768, 1, bias=False),
            "text_encoder.model": _bert(full, 28996, layers=4),
        }
    tensors = _draw(parts, full, f"{model}.")
    # Otherwise the softmax over the words saturates.
    tensors[f"{model}.img_encoder.local_embedder.weight"] *= 0.1
    path = folder / f"{model}.ckpt"
    torch.save({"state_dict": tensors, "epoch": 3, "global_step": 7}, path)
    return {"checkpoint": str(path), "text_encoder": _tokeniser(folder / "bert")}


def _kad(folder: Path, full: bool) -> dict[str, str]:
    with torch.device("meta"):
        resnet = resnet50()
        image = {"res_features": nn.Sequential(*list(resnet.children())[:-2]), "resnet": resnet}
        image |= {"res_l1": nn.Linear(2048, 2048), "res_l2": nn.Linear(2048, 768)}
        parts = {"image_encoder": nn.ModuleDict(image), **_knowledge(full)}
    return _sections(parts, folder / "best_valid.pt", full)


def _devide(folder: Path, full: bool) -> dict[str, str]:
    with torch.device("meta"):
        parts = {"image_encoder": _vit(full), **_knowledge(full)}
    return _sections(parts, folder / "devide.pt", full)


def _knowledge(full: bool) -> dict[str, nn.Module]:
    return {"text_encoder": Text(full), "model": Decoder()}


def _sections(parts: dict[str, nn.Module], path: Path, full: bool) -> dict[str, str]:
    draw = weight if full else quick_weight
    content: dict[str, Any] = {"optimizer": {"state": {}}, "config": {"img_res": 224}, "epoch": 1}
    for section, part in parts.items():
        # Where a tensor has two names, they share its memory in the files of the authors too.
        drawn: dict[int, Tensor] = {}
        content[section] = {}
        for name, tensor in part.state_dict(keep_vars=True).items():
            if id(tensor) not in drawn:
                drawn[id(tensor)] = draw(f"{section}.{name}", tuple(tensor.shape))
            content[section][name] = drawn[id(tensor)]
    torch.save(content, path)
    return {"checkpoint": str(path), "text_encoder": _tokeniser(path.parent / "bert")}


def _book(model: str, folder: Path, full: bool) -> dict[str, str]:
    checkpoint = write_official(official_weights(model, weight if full else quick_weight), folder)
    with torch.device("meta"):
        bert = _bert(full, 28996)
    place = _tokeniser(folder / "bert", bert.config)
    save_file(_draw({"bert": bert}, full), Path(place, "model.safetensors"))
    return {"checkpoint": checkpoint, "text_encoder": place}


def _clip(folder: Path, full: bool) -> dict[str, str]:
    config = open_clip.get_model_config("ViT-B-16-quickgelu") if full else SMALL_CLIP
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    return {**_of_open_clip(folder, full), "architecture": f"local-dir:{folder}"}


def _biomedclip(folder: Path, full: bool) -> dict[str, str]:
    small = {"vocab_size": len(VOCABULARY), "hidden_size": 64, "num_attention_heads": 1}
    bert = _tokeniser(folder, BertConfig() if full else BertConfig(**BERT | small))
    config = copy.deepcopy(_BIOMEDCLIP)
    config["text_cfg"] |= {"hf_model_name": bert, "hf_tokenizer_name": bert}
    if not full:
        config["vision_cfg"]["timm_model_name"] = "vit_tiny_patch16_224"
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    _of_open_clip(folder, full)
    return {"checkpoint": str(folder)}


def _chexzero(folder: Path, full: bool) -> dict[str, str]:
    path = folder / "best_64_5e-05_original_22000_0.864.pt"
    torch.save(_draw({"": open_clip.create_model("ViT-B-32-quickgelu", load_weights=False)}, full), path)
    return {"checkpoint": str(path)}


def _biovil(image: str, folder: Path, full: bool) -> dict[str, str]:
    checkpoint, place = folder / "biovil_image.pt", _tokeniser(folder / "bert")
    torch.save(biovil_weights(image, full), checkpoint)
    torch.save(biovil_weights("text", full), Path(place, "pytorch_model.bin"))
    return {"checkpoint": str(checkpoint), "text_encoder": place}


def biovil_weights(file: str, full: bool) -> dict[str, Tensor]:
    """Return the tensors of a file: `image` of BioViL, `temporal` of BioViL-T, or `text` of either."""
    # Files have no prefix, the names by which the golden vectors were drawn have.
    temporal, prefix = file == "temporal", "text." if file == "text" else "image."
    with torch.device("meta"):
        if file == "text":
            head, parts = "cls_projection_head", {"bert": _bert(full), "cls.predictions": nn.Linear(768, 768)}
            parts |= {f"{head}.dense_to_hidden": nn.Linear(768, 128), f"{head}.LayerNorm": nn.LayerNorm(128)}
            parts[f"{head}.dense_to_output"] = nn.Linear(128, 128)
        else:
            first, last = nn.Conv2d(512 if temporal else 2048, 128, 1, bias=False), nn.Conv2d(128, 128, 1)
            projector = nn.Sequential(first, nn.BatchNorm2d(128), nn.ReLU(), last)
            parts = {"encoder.encoder": resnet50(), "projector.model": projector}
        if temporal:
            compression = nn.Conv2d(2048, 256, 1, bias=False)
            parts |= {"encoder.backbone_to_vit": compression, "encoder.vit_pooler.norm_post": nn.LayerNorm(256)}
    tensors = _draw({f"{prefix}{name}": part for name, part in parts.items()}, full)
    if temporal:
        name = "image.encoder.missing_previous_emb"
        tensors[name] = (weight if full else quick_weight)(name, (1, 256, 1, 1))
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if ".pooler." not in name}
    unused = ("encoder.encoder.fc.", "encoder.vit_pooler.", "cls.")
    return {name: torch.full_like(own, torch.nan) if name.startswith(unused) else own for name, own in named.items()}


def _cxrclip(folder: Path, full: bool) -> dict[str, str]:
    with torch.device("meta"):
        resnet = resnet50()
        resnet.fc = nn.Identity()
        parts = {"image_encoder.resnet": resnet, "text_encoder.text_encoder": _bert(full, 28996)}
        parts["image_projection.projection"] = nn.Linear(2048, 512)
        parts["text_projection.projection"] = nn.Linear(768, 512)
    path = folder / "r50_m.tar"
    tensors = {**_draw(parts, full), "logit_scale": torch.tensor(2.6)}
    torch.save({"model": tensors, "config": {"base": {"text_max_length": 128}}, "epoch": 3}, path)
    return {"checkpoint": str(path), "text_encoder": _tokeniser(folder / "bert")}


def _of_open_clip(folder: Path, full: bool) -> dict[str, str]:
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
    path = folder / "open_clip_pytorch_model.bin"
    torch.save(_draw({"": model}, full), path)
    return {"checkpoint": str(path)}


def _radzero(folder: Path, full: bool) -> dict[str, str]:
    with torch.device("meta"):
        networks = radzero._networks({})
    official = {own: theirs for theirs, own in radzero._ATTENTION.items()}
    tensors = {"loss_fns.RadZeroLoss.loss_temperature": torch.tensor([math.log(0.07)])}
    for name, tensor in _draw({"": networks}, full).items():
        for own, theirs in official.items():
            name = name.replace(own, theirs)
        tensors[f"loss_fns.RadZeroLoss.{name}" if name.startswith("layer_norm.") else name] = tensor
    save_file(tensors, folder / "model.safetensors")
    settings = {"size": {"height": 224, "width": 224}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(["<s>", "<pad>", "</s>", "<mask>", "[UNK]", *VOCABULARY[5:]]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MPNetTokenizer"}))
    return {"checkpoint": str(folder / "model.safetensors"), "text_encoder": str(folder)}


def _hf(folder: Path, full: bool) -> dict[str, str]:
    small = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = small | {"vocab_size": len(VOCABULARY), "projection_size": 48}
    towers = {} if full else {"text_config": text, "vision_config": small}
    config: dict[str, Any] = {"model_type": "siglip", **towers}
    return write_hf(folder, config, 224, weight if full else quick_weight)


def write_hf(
    folder: Path, config: dict[str, Any], side: int, draw: Callable[[str, tuple[int, ...]], Tensor] = weight
) -> dict[str, str]:
    """Write a SigLIP or CLIP as transformers does, the former with a tokenizer for `VOCABULARY`."""
    siglip = config["model_type"] == "siglip"
    with torch.device("meta"):
        network = SiglipModel(SiglipConfig(**config)) if siglip else CLIPModel(CLIPConfig(**config))
    folder.mkdir(exist_ok=True)
    tensors = drawn(network, draw=draw)
    if siglip:
        tensors["logit_bias"] = torch.tensor([-10.0])
        model = import_protobuf().ModelProto()
        words = (f"▁{word}" for word in (*_WORDS, "chest", "showing"))
        for piece in ("<pad>", "</s>", "<unk>", "▁", *_LETTERS, *words):
            model.pieces.add(piece=piece, score=-10.0 if len(piece) == 1 else -1.0)
        (folder / "spiece.model").write_bytes(model.SerializeToString())
    save_file(tensors, folder / "model.safetensors")
    size = {"size": {"height": side, "width": side}} if siglip else {"size": side, "crop_size": side}
    (folder / "preprocessor_config.json").write_text(json.dumps(size))
    (folder / "config.json").write_text(json.dumps(config))
    return {"checkpoint": str(folder / "model.safetensors")}


def _draw(parts: dict[str, nn.Module], full: bool, prefix: str = "") -> dict[str, Tensor]:
    draw, tensors = weight if full else quick_weight, dict[str, Tensor]()
    for part, network in parts.items():
        inside = f"{part}." if part else ""
        tensors |= {f"{prefix}{inside}{name}": tensor for name, tensor in drawn(network, inside, draw).items()}
    return tensors


def _vit(full: bool) -> nn.Module:
    vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    if not full:
        vit.blocks = vit.blocks[:BLOCKS]
    return vit


def _bert(full: bool, vocabulary: int = 30522, layers: int = 1) -> BertModel:
    return BertModel(BertConfig(vocab_size=vocabulary) if full else BertConfig(**BERT | {"num_hidden_layers": layers}))


def write_tokeniser(folder: Path, words: Sequence[str], config: BertConfig | None = None) -> str:
    """Write a BERT's tokeniser that knows these words, and the configuration that it needs."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (config or BertConfig(vocab_size=len(words))).save_pretrained(folder)
    return str(folder)


def _tokeniser(folder: Path, config: BertConfig | None = None) -> str:
    # Of a released size, the text encoder has more words than any prompt here; some loaders compare the two numbers.
    more = 0 if config is None else config.vocab_size - len(VOCABULARY)
    return write_tokeniser(folder, [*VOCABULARY, *(f"[unused{number}]" for number in range(more))], config)


_WRITERS: dict[str, Callable[[Path, bool], dict[str, str]]] = {
    "carzero": _carzero,
    "clip": _clip,
    "biomedclip": _biomedclip,
    "medklip": partial(_book, "medklip"),
    "kad": _kad,
    "mavl": partial(_book, "mavl"),
    "devide": _devide,
    "radzero": _radzero,
    "hf": _hf,
    "gloria": partial(_gloria, "gloria"),
    "afloc": partial(_gloria, "afloc"),
    "chexzero": _chexzero,
    "biovil": partial(_biovil, "image"),
    "biovilt": partial(_biovil, "temporal"),
    "cxrclip": _cxrclip,
}
MODELS = tuple(_WRITERS)
FIXED = ("gloria", "afloc")
"""Those whose input has one size."""
