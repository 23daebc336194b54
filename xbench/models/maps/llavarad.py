"""LLaVA-Rad: Vicuna-7B reads the patches of BiomedCLIP-CXR and writes the findings section of a report.

J. M. Zambrano Chaves et al., "Towards a clinically accessible radiology foundation model", arXiv:2403.08002. It gives
no boxes and answers no yes or no. The map is not an output of its authors: it is the attention to the patches of the
words that name a finding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM, LlamaTokenizer
from transformers.convert_slow_tokenizer import generate_merges
from transformers.initialization import no_init_weights

from xbench.findings.prompts import phrase
from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.models.base import VLM, check_at_least_one
from xbench.models.networks.bert import parse_sentencepiece
from xbench.models.networks.checkpoint import config_of, explained, fill, read_tensors
from xbench.models.networks.query_decoder import Layers, choose
from xbench.models.networks.reads_patches import ReadsPatches
from xbench.predictions.asking import Question, Reply
from xbench.runtime.digests import digest, file_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.types import Batch, MapScale, ModelOutput, Prediction

EXAMPLE, BASE = "microsoft/llava-rad", "lmsys/vicuna-7b-v1.5"
QUESTION = "Provide a description of the findings in the radiology image."
# Vicuna's first turn before the image, as in LLaVA's template v1.
BEFORE = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: "
)

_TOWER = "biomedclipcxr_518_checkpoint.pt"
_PEFT = "base_model.model."
# Required, because transformers' defaults would make Vicuna generate nonsense without an error.
_SETTINGS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
)
# Tensors of the tower's file that LLaVA-Rad does not use, or that transformers computes.
_UNUSED = ("text.*", "visual.head.*", "logit_scale", "logit_bias", "*.rotary_emb.inv_freq")


class LLaVARad(VLM):
    """LLaVA-Rad (Microsoft): the attention to the radiograph of words that name a finding. Exploratory.

    The model gets the authors' question and the beginning of an answer that names the finding, so each pair has a map,
    whatever report the model would write. The map is the attention of the name, averaged over tokens, layers and heads.
    The model sees the central square of the radiograph, gives no scores, and processes each image and finding alone, so
    that no map depends on others.

    Args:
        checkpoint: Folder of microsoft/llava-rad from `hf download`.
        base: Folder of lmsys/vicuna-7b-v1.5, which the checkpoint adapts.
        prompts: Other names of the findings, see `xbench.models.VLM`; by default as radiologists write them.
        sentence: Beginning of the answer, with `{finding}` once.
        layers: Layers of Vicuna, from 0, whose attention counts, or `all` or `last`.
        heads: Heads whose attention counts, from 0; all if None.
        dtype: Data type of the weights; the authors use float16.
        reports: Whether to write the findings section of each image too, greedily, for `rescore --protocol words`.
        report_tokens: Most tokens of a findings section; the authors' 256.
    """

    name, stated = "llavarad", "sentence"
    map_scale: MapScale = "attention"
    scores = False
    exploratory = (
        "they are the attention of words given to it, which its authors neither trained nor evaluated to show where a "
        "finding is"
    )

    def __init__(
        self,
        checkpoint: str | None = None,
        base: str | None = None,
        prompts: str | None = None,
        sentence: str = "There is {finding}.",
        layers: Layers = "all",
        heads: list[int] | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float16",
        reports: bool = False,
        report_tokens: int = 256,
    ) -> None:
        super().__init__(prompts)
        check_at_least_one(report_tokens=report_tokens)
        self._reports, self._report_tokens = reports, report_tokens
        if sentence.count("{finding}") != 1:
            raise UsageError(f"--model.sentence {sentence!r} must contain {{finding}} once.")
        folder, vicuna = _folder(checkpoint, "checkpoint", EXAMPLE), _folder(base, "base", BASE)
        config = _config(folder)
        self.sentence = sentence
        self.layers = choose("layers", layers, config.num_hidden_layers)
        self.heads = choose("heads", heads, config.num_attention_heads)
        self.tokenizer = read_tokenizer(vicuna / "tokenizer.model")
        if (known := len(self.tokenizer)) > config.vocab_size:
            raise UserError(f"The tokenizer of {vicuna} has {known} tokens, but {folder} has {config.vocab_size}.")
        files = _files(folder, vicuna)
        tensors = _tensors(folder, files, getattr(torch, dtype))
        self.network = _network(config, tensors, folder, getattr(torch, dtype))
        side = self.network.visual.trunk.patch_embed.img_size[0]
        geometry = [PillowResize(side), CenterCrop(side)]
        self.preprocessing = Preprocessing(geometry, OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
        self._digests = {path.name: file_sha256(path) for path in files}
        self._before = [self.tokenizer.bos_token_id, *self._tokens(BEFORE)["input_ids"]]
        patches = self.network.visual.trunk.patch_embed.num_patches
        self._begin = [*self._before, *[self.network.image_token] * patches]

    def default_prompts(self, finding: str) -> Sequence[str]:
        return [phrase(finding)]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each class, the tokens after the image (T,), and whether they name it (T,), bool."""
        queries = []
        for name in self.one_of_each(prompts):
            before, after = self.sentence.split("{finding}")
            start = f"\n{QUESTION} ASSISTANT: {before}"
            encoded = self._tokens(f"{start}{name}{after}", return_offsets_mapping=True)
            begin, end = len(start), len(start) + len(name)
            named = [first < end and last > begin for first, last in encoded["offset_mapping"]]
            tokens = torch.tensor(encoded["input_ids"], device=self.device)
            queries.append((tokens, torch.tensor(named, device=self.device)))
        return queries

    def forward(self, images: Tensor, queries: Sequence[tuple[Tensor, Tensor]]) -> ModelOutput:
        """Return the attention of C names on normalized images (B, 3, S, S): maps (B, C, rows, columns).

        Maps sum to the patches' share of attention; logits and probabilities (B, C) are NaN.
        """
        return self._attend(images, queries, [f"{place + 1} of the batch" for place in range(len(images))])

    def score(self, batch: Batch) -> ModelOutput:
        return self._attend(batch.images, self.queries, batch.truth.image_ids)

    def predict(self, batch: Batch) -> Prediction:
        prediction = super().predict(batch)
        if self._reports and not batch.condition:
            asked = [Question("report", row, -1, "", QUESTION) for row in range(len(batch.images))]
            prediction.texts = [*zip(asked, map(self.report, batch.images), strict=True)]
        return prediction

    @torch.no_grad()
    def report(self, image: Tensor) -> Reply:
        network, end = self.network, self.tokenizer.eos_token_id
        question = self._tokens(f"\n{QUESTION} ASSISTANT:")["input_ids"]
        tokens = torch.tensor([self._begin + question], device=image.device)
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=self._report_tokens, eos_token_id=end, pad_token_id=network.image_token
        )
        inputs = {"attention_mask": torch.ones_like(tokens), "pixel_values": image[None].to(network.dtype)}
        sequences = network.generate(input_ids=tokens, **inputs, generation_config=settings)
        written = sequences[0, tokens.shape[1] :].tolist()
        ended = written[-1:] == [end]
        text = str(self.tokenizer.decode(written[:-1] if ended else written, skip_special_tokens=False)).strip()
        return Reply(text, "stop" if ended else "length", prompt_sha256=digest(QUESTION), tokens_out=len(written))

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "checkpoint_sha256": self._digests[_TOWER],
            "files_sha256": self._digests,
            "question": QUESTION,
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "saliency": {"kind": "attention of the tokens that name it", "layers": self.layers, "heads": self.heads},
        }

    @torch.no_grad()
    def _attend(self, images: Tensor, queries: Sequence[tuple[Tensor, Tensor]], names: Sequence[str]) -> ModelOutput:
        network, begun = self.network, torch.tensor([self._begin], device=images.device)
        first, end = len(self._before), begun.shape[1]
        maps: list[Tensor] = []
        for image, name in zip(images, names, strict=True):
            cache = DynamicCache(config=network.config)
            options = {"past_key_values": cache, "use_cache": True}
            network.model(inputs_embeds=network.embedded(begun, image[None].to(network.dtype)), **options)
            for place, (tokens, named) in enumerate(queries):
                layers = network.model(input_ids=tokens[None], output_attentions=True, **options).attentions
                cache.crop(-len(tokens))
                chosen = torch.stack([layers[layer][0, self.heads][:, named, first:end] for layer in self.layers])
                maps.append(chosen.float().mean((0, 1, 2)))
                low, high = float(maps[-1].amin()), float(maps[-1].amax())
                # Relative to rounding, because constant attention shows no place.
                if not math.isfinite(high - low) or high - low <= 1e-6 * high:
                    what = "the same on every patch" if math.isfinite(high - low) else "not finite"
                    finding = self.findings[place] if hasattr(self, "findings") else f"query {place + 1}"
                    raise UserError(
                        f"{self.name}: the attention for image {name}, finding {finding}, is {what}. Check the weights "
                        "and the image, and try --model.dtype float32."
                    )
        grid = network.visual.trunk.patch_embed.grid_size
        saliency = torch.stack(maps).unflatten(0, (len(images), -1)).unflatten(-1, grid)
        missing = torch.full(saliency.shape[:2], math.nan, device=saliency.device)
        return ModelOutput(missing, missing.clone(), saliency)

    def _tokens(self, text: str, **options: Any) -> Any:
        # LLaVA tokenizes the text before the image and the text after it separately.
        return self.tokenizer(text, add_special_tokens=False, **options)


class LLaVARadNetwork(ReadsPatches, LlamaForCausalLM):
    """Vicuna that reads the patches of an image, under the names of the published tensors."""

    # Never in a text, because unknown letters become bytes.
    image_token = 0

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.visual: Any = nn.Module()
        self.visual.trunk = VisionTransformer(**config.visual, num_classes=0, weight_init="skip")
        seen, width = config.visual["embed_dim"], config.hidden_size
        self.model.mm_projector = nn.Sequential(nn.Linear(seen, width), nn.GELU(), nn.Linear(width, width))

    def patches(self, pixels: Tensor) -> Tensor:
        """Return the patches (B, N, D) of images (B, 3, S, S) from `blocks_read`, without norm and class token."""
        options = {"indices": [self.config.blocks_read - 1], "output_fmt": "NLC", "intermediates_only": True}
        (tokens,) = self.visual.trunk.forward_intermediates(pixels, stop_early=True, **options)
        return self.model.mm_projector(tokens)  # type: ignore[no-any-return]


def read_tokenizer(path: Path) -> LlamaTokenizer:
    """Return Vicuna's tokenizer from a SentencePiece file, without that library; raise a UserError if it is none."""
    advice = f"Fetch tokenizer.model of {BASE} again."
    model = parse_sentencepiece(path, advice)
    with explained(f"The tokenizer {path} cannot be read", advice):
        pieces = {piece.piece: piece.score for piece in model.pieces}
        vocabulary = {piece: place for place, piece in enumerate(pieces)}
        if [*pieces][:3] != ["<unk>", "<s>", "</s>"] or "<0x0A>" not in vocabulary:
            raise ValueError("its pieces are not Vicuna's")
        return LlamaTokenizer(vocabulary, generate_merges(vocabulary, pieces), legacy=False)


def _folder(given: str | None, option: str, example: str) -> Path:
    if given and (folder := Path(given).expanduser()).is_dir():
        return folder
    what = f"{given} is not a folder" if given else "LLaVA-Rad adapts Vicuna, and needs both"
    written = f"`hf download {example} --local-dir FOLDER` writes"
    raise UsageError(f"{what}: give --model.{option} the folder that {written}.")


def _config(folder: Path) -> LlamaConfig:
    settings = config_of(
        *(folder, "LLaVA-Rad", EXAMPLE, (*_SETTINGS, "mm_vision_select_layer")),
        mm_projector_type=("mlp2x_gelu",),
        mm_use_im_start_end=(False,),
        mm_use_im_patch_token=(False,),
        mm_vision_select_feature=("patch", None),
        image_aspect_ratio=("square", None),
    )
    more = ("rope_theta", "rope_scaling", "bos_token_id", "eos_token_id", "pad_token_id")
    config = LlamaConfig(**{name: settings[name] for name in (*_SETTINGS, *more) if settings.get(name) is not None})
    config.select_layer = int(settings["mm_vision_select_layer"])
    return config


def _files(folder: Path, vicuna: Path) -> list[Path]:
    adapters = [folder / name for name in ("adapter_model.safetensors", "adapter_model.bin")]
    adapter = adapters[0] if adapters[0].is_file() else adapters[1]
    own = [adapter, folder / "non_lora_trainables.bin", folder / _TOWER]
    theirs = sorted(vicuna.glob("model*.safetensors")) or sorted(vicuna.glob("pytorch_model*.bin"))
    if missing := [path.name for path in own if not path.is_file()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}. Fetch it again from {EXAMPLE}.")
    if not theirs:
        raise UserError(f"{vicuna} has no weights (model*.safetensors or pytorch_model*.bin). Fetch {BASE} again.")
    return [*own, *theirs]


def _tensors(folder: Path, files: Sequence[Path], dtype: torch.dtype) -> dict[str, Tensor]:
    unset = ("fan_in_fan_out", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")
    expected: dict[str, Any] = {"bias": ["none"], "peft_type": ["LORA"], **dict.fromkeys(unset, (None, False, [], {}))}
    settings = config_of(folder, "LLaVA-Rad", EXAMPLE, ("r", "lora_alpha"), "adapter_config.json", **expected)
    tensors: dict[str, Tensor] = {}
    for path in files[3:]:
        tensors |= read_tensors(path)
    changes, projector, tower = (
        {name.removeprefix(_PEFT): tensor for name, tensor in read_tensors(path).items()} for path in files[:3]
    )
    for stem in sorted({name.rpartition(".lora_")[0] for name in changes}):
        down, up = (changes.pop(f"{stem}.lora_{side}.weight", None) for side in "AB")
        weight = tensors.get(f"{stem}.weight")
        if weight is None or down is None or up is None or weight.shape != (len(up), down.shape[-1]):
            raise UserError(
                f"The adapter in {files[0]} does not fit {files[3].parent}: {stem}. Give the files of {EXAMPLE} and "
                f"{BASE}."
            )
        scale = float(settings["lora_alpha"]) / int(settings["r"])
        tensors[f"{stem}.weight"] = (weight.float() + scale * (up.float() @ down.float())).to(dtype)
    return tensors | projector | tower | changes


def _network(config: LlamaConfig, tensors: Mapping[str, Tensor], folder: Path, dtype: torch.dtype) -> Any:
    seen = config_of(folder, "LLaVA-Rad", EXAMPLE, ("vision_cfg",), "biomedclipcxr_518.json")["vision_cfg"]
    if not re.match("vit_.*dinov2", str(seen["timm_model_name"])):
        raise UserError(f"{folder} has no biomedclipcxr_518.json of LLaVA-Rad, but one of {seen['timm_model_name']}.")
    side = int(seen["image_size"])
    try:
        width, _, patch, _ = tensors["visual.trunk.patch_embed.proj.weight"].shape
        wide, _ = tensors["visual.trunk.blocks.0.mlp.fc1.weight"].shape
        tokens = tensors["visual.trunk.pos_embed"].shape[1]
    except (LookupError, ValueError):
        raise UserError(f"{folder / _TOWER} has no vision transformer. Fetch it again from {EXAMPLE}.") from None
    if tokens != (side // patch) ** 2 + 1:
        misfit = f"{tokens} tokens, which do not fit {side} pixels"
        raise UserError(f"{folder / _TOWER} has {misfit}. Fetch it from {EXAMPLE}.")
    depth = len({name.split(".")[3] for name in tensors if name.startswith("visual.trunk.blocks.")})
    # As in LLaVA, -1 is the output of the last block, -2 that of the one before it.
    config.blocks_read = config.select_layer % (depth + 1)
    config.visual = {
        "img_size": side,
        "patch_size": patch,
        "embed_dim": width,
        "depth": depth,
        "num_heads": max(1, width // 64),  # as in all ViTs
        "mlp_ratio": wide / width,
        "init_values": 1e-5,  # creates the scale of each layer, which the file contains
        "global_pool": "",
    }
    with no_init_weights():
        network = LLaVARadNetwork._from_config(config, dtype=dtype, attn_implementation="eager")  # type: ignore[no-untyped-call]
    fill(network, tensors, folder, "LLaVA-Rad", _UNUSED, f"Give the files of {EXAMPLE} and {BASE}.")
    return network.to(dtype).eval().requires_grad_(False)
