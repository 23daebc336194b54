"""Vision-language models of transformers on this machine, asked in words where a finding is.

Families differ in the network, the order of image and question, and the length of answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from huggingface_hub import hf_hub_download
from numpy.typing import NDArray
from PIL import Image

from xbench.models.answering import AnsweringModel, pad_to_square
from xbench.models.base import check_at_least_one
from xbench.models.networks.checkpoint import config_of, explained, first_line
from xbench.predictions.asking import Question, Reply
from xbench.predictions.recognition import first_tokens
from xbench.runtime.digests import digest, files_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.types import Batch

WAYS_OUT = (
    "Code that comes with a checkpoint is never run here. Run the network natively if transformers or xbench has it, "
    "serve the model where its code may run and ask it with the model `endpoint`, or score existing answers with "
    "`xbench score`."
)


@dataclass(frozen=True)
class Architecture:
    """What distinguishes the models of a family."""

    networks: Mapping[str, str]  # class in transformers by the `model_type` of config.json
    example: str  # a checkpoint on the Hugging Face hub
    tokens: int = 1024  # most tokens of an answer
    text_first: bool = False  # whether the question precedes the image
    chat: bool = True  # whether the checkpoint's chat template words turns; otherwise the question alone
    beams: int = 1  # of the search; 1 takes the likeliest token each time
    recognizes: bool = True  # whether it can be asked if a finding is present


_LLAVA = {"llava_onevision": "LlavaOnevisionForConditionalGeneration"}
_GEMMA = {"gemma3": "Gemma3ForConditionalGeneration"}
_FLORENCE = {"florence2": "Florence2ForConditionalGeneration"}
_QWEN = {"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration"}

ARCHITECTURES: Mapping[str, Architecture] = {
    "radvlm": Architecture(_LLAVA, "KrauthammerLab/RadVLM", tokens=1500, text_first=True),
    # It reasons before it answers, so its first token does not answer yes or no.
    "medgemma": Architecture(_GEMMA, "google/medgemma-1.5-4b-it", tokens=1000, recognizes=False),
    "qwen25vl": Architecture({"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}, "Qwen/Qwen2.5-VL-7B-Instruct"),
    "qwen3vl": Architecture(_QWEN, "Qwen/Qwen3-VL-8B-Instruct"),
    "internvl": Architecture({"internvl": "InternVLForConditionalGeneration"}, "OpenGVLab/InternVL3_5-8B-HF"),
    "florence2": Architecture(_FLORENCE, "florence-community/Florence-2-base", chat=False, recognizes=False),
    "agkd": Architecture(_FLORENCE, "RioJune/AG-KD", chat=False, beams=3, recognizes=False),
}
"""Families with networks in transformers."""

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
OFFLINE: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}


class Local(AnsweringModel):
    """A vision-language model with a class in transformers, selected by the family of its answers.

    Decoding is greedy, and code from checkpoints is never run. Only queries about the same image share a batch, so that
    no answer depends on other images. The frame `thousand_padded` pads the image to a square, `loc1000_padded512` to
    one of 512 pixels.

    Args:
        family: A name in `ARCHITECTURES`.
        checkpoint: Folder from `save_pretrained` with weights as safetensors, or the name of a downloaded checkpoint.
        processor: Folder or name of tokenizer, image processor and chat template; by default the checkpoint's.
        max_tokens: Most tokens of an answer; the family's if None.
        together: Number of queries about an image to batch.
        dtype: Data type of the weights; `auto` keeps the stored type.
    """

    architecture: Architecture

    def __init__(
        self,
        family: str,
        checkpoint: str | None = None,
        processor: str | None = None,
        max_tokens: int | None = None,
        together: int = 8,
        dtype: Dtype = "auto",
        **options: Any,
    ) -> None:
        if not hasattr(self, "architecture"):
            if family not in ARCHITECTURES:
                known = ", ".join(ARCHITECTURES)
                raise UsageError(f"--model.family {family}: transformers' own classes run {known}. {WAYS_OUT}")
            self.architecture = ARCHITECTURES[family]
        self.recognizes = self.architecture.recognizes
        self.name = family
        super().__init__(family, **options)
        check_at_least_one(max_tokens=max_tokens, together=together)
        if not checkpoint:
            example = f"`hf download {self.architecture.example} --local-dir FOLDER`"
            raise UsageError(f"{family} needs weights: give --model.checkpoint FOLDER, for example from {example}.")
        self.checkpoint = _place(checkpoint, "checkpoint")
        self.processor_source = self.checkpoint if processor is None else _place(processor, "processor")
        self._together = together
        self.network, self.processor = self._load(dtype)
        # MAIRA-2's authors allow as many for a grounded report.
        self._prepare(max_tokens or max(self.architecture.tokens, 450 * (self.asks == "report")))
        self._yes_no: tuple[list[int], list[int]] = ([], [])

    def _load(self, dtype: str) -> tuple[Any, Any]:
        folder, networks, example = self.checkpoint, self.architecture.networks, self.architecture.example
        config = config_of(folder, self.name, example, ("model_type",))
        kind, advice = config["model_type"], WAYS_OUT if "auto_map" in config else f"Give one such as {example}."
        if kind not in networks:
            fitting = " or ".join(networks)
            raise UserError(f"{folder} has a model of type {kind!r}, but {self.name} is {fitting}. {advice}")
        if not hasattr(transformers, name := networks[kind]):
            raise UserError(f"transformers {transformers.__version__} has no {name}: install a newer one.")
        network = load_network(getattr(transformers, name), folder, dtype, advice)
        folder = self.processor_source
        advice = f"Give --model.processor a folder with the tokenizer and image processor of {example}."
        with explained(f"The processor in {folder} cannot be loaded", advice):
            processor = transformers.AutoProcessor.from_pretrained(folder, **OFFLINE)
        if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
            raise UserError(f"{folder} has no processor of images and text. {advice}")
        if self.architecture.chat and not processor.chat_template:
            raise UserError(f"{folder} has no chat template (chat_template.jinja or .json). {advice}")
        return network, processor

    def setup(self, stage: str) -> None:
        """Find the tokens that begin yes and no after the end of each prompt."""
        super().setup(stage)
        if self._recognise and self.findings:
            query = Question("recognise", 0, 0, self.findings[0], self.words(self.findings[0])["recognise"])
            self._yes_no = self._yes_no_tokens(self._prompts([self._turns(query, None)])[0])

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        for (row, kind), group in groupby(queries, key=lambda query: (query.row, query.kind)):
            image, of_image = self._picture(batch.radiographs[row].numpy()), list(group)
            for start in range(0, len(of_image), self._together):
                try:
                    prompts, inputs = self._inputs(image, of_image[start : start + self._together])
                except ValueError as error:
                    raise UserError(
                        f"The processor of {self.name} rejects the image {batch.truth.image_ids[row]} of {image.width} "
                        f"x {image.height} pixels ({first_line(error)}). Leave it out, or crop it."
                    ) from error
                replies += self._generate(prompts, inputs, kind == "recognise")
        return replies

    @torch.no_grad()
    def _generate(self, prompts: Sequence[str], inputs: Any, first_token: bool) -> list[Reply]:
        frame = self._shown(inputs)
        inputs = inputs.to(self.network.device, self.network.dtype)
        beams = self.network.generation_config.num_beams
        options: dict[str, Any] = {"output_scores": beams > 1, "output_logits": first_token}
        if first_token:
            options["max_new_tokens"] = 8
        output = self.network.generate(**inputs, **options, return_dict_in_generate=True)
        sent = inputs["attention_mask"].sum(1).tolist()
        begin = 1 if self.network.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        confidence = self._confidence(output) if beams > 1 else [None] * len(prompts)
        replies, decode = [], self.processor.tokenizer.decode
        for place, tokens in enumerate(output.sequences[:, begin:].tolist()):
            end = next((at + 1 for at, token in enumerate(tokens) if token in self._ends), None)
            tokens = tokens[:end]
            scores: dict[str, Any] = {}
            if first_token:
                logits = output.logits[0][place].double()
                mass = float(logits.softmax(0)[[*self._yes_no[0], *self._yes_no[1]]].sum())
                scores = {"yes_no": tuple(logits[ids].tolist() for ids in self._yes_no), "mass": min(1.0, mass)}
            replies.append(
                Reply(
                    decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False),
                    finish="length" if end is None else "stop",
                    frame=frame,
                    prompt_sha256=digest(prompts[place]),
                    tokens_in=sent[place],
                    tokens_out=len(tokens),
                    confidence=confidence[place],
                    **scores,
                )
            )
        return replies

    def _inputs(self, image: Image.Image, queries: Sequence[Question]) -> tuple[list[str], Any]:
        options = {"padding": True, "return_tensors": "pt"}
        if not self.architecture.chat:
            texts = [query.text for query in queries]
            return texts, self.processor(text=texts, images=[image] * len(texts), **options)
        turns = [self._turns(query, image) for query in queries]
        inputs = self.processor.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True, processor_kwargs=options
        )
        return self._prompts(turns), inputs

    def _prompts(self, turns: list[Any]) -> list[str]:
        return self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)  # type: ignore[no-any-return]

    def _turns(self, query: Question, image: Image.Image | None) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"type": "image", "image": image}, {"type": "text", "text": query.text}]
        user = {"role": "user", "content": parts[::-1] if self.architecture.text_first else parts}
        if query.system is None:
            return [user]
        return [{"role": "system", "content": [{"type": "text", "text": query.system}]}, user]

    def _picture(self, pixels: NDArray[np.uint8]) -> Image.Image:
        picture, (height, width) = Image.fromarray(pixels).convert("RGB"), pixels.shape
        longest = max(width, height)
        side = {"thousand_padded": longest, "loc1000_padded512": 512}.get(self.convention.base)
        if side is None:
            return picture
        if longest != side:
            shrunk = [max(1, (2 * side * edge + longest) // (2 * longest)) for edge in (width, height)]
            picture = picture.resize((shrunk[0], shrunk[1]), Image.Resampling.BILINEAR)
        return pad_to_square(picture, side)

    def _shown(self, inputs: Any) -> str | None:
        if self.convention.base != "pixels_resized" or "@" in self.convention.name:
            return None
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        patch = self.processor.image_processor.patch_size
        return self.convention.shown(columns * patch, rows * patch).name

    def _yes_no_tokens(self, prompt: str) -> tuple[list[int], list[int]]:
        def tokens(text: str) -> list[int]:
            return self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

        before = tokens(prompt)

        def encode(word: str) -> list[int]:
            after = tokens(prompt + word)
            # If the word merges with the end of the prompt, a model never generates it that way.
            return after[len(before) :] if after[: len(before)] == before else tokens(word)

        sides = first_tokens(encode)
        if not all(sides):
            same = f"The tokenizer of {self.processor_source} begins yes and no with the same token"
            raise UserError(f"{same}: leave --model.recognise out.")
        return sides

    def _confidence(self, output: Any) -> list[float]:
        beams = output.sequences, output.scores, output.beam_indices
        scores = self.network.compute_transition_scores(*beams, normalize_logits=False).double()
        counted = (scores < 0).sum(1).clamp(min=1)
        return (scores.sum(1) / counted**self.network.generation_config.length_penalty).exp().clamp(0, 1).tolist()  # type: ignore[no-any-return]

    def _prepare(self, tokens: int) -> None:
        """Configure greedy decoding without settings of the checkpoint that change likelihoods."""
        tokenizer, stored = self.processor.tokenizer, self.network.generation_config
        decodes_apart = self.network.config.is_encoder_decoder
        known = self.network.get_input_embeddings().num_embeddings
        if len(tokenizer) > known:
            tokens_of = f"The tokenizer of {self.processor_source} has {len(tokenizer)} tokens"
            raise UserError(f"{tokens_of}, but the network of {self.checkpoint} {known}. Check --model.processor.")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if not decodes_apart:
            tokenizer.padding_side = "left"  # each answer must begin where its prompt ends
        ends = tokenizer.eos_token_id if stored.eos_token_id is None else stored.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
        if not self._ends:
            where = "in generation_config.json or tokenizer"
            raise UserError(f"{self.checkpoint} names no token that ends an answer, {where}. Fetch its files again.")
        kept = ["bos_token_id", "pad_token_id"]
        # Encoder-decoders were trained with these start tokens; the length settings belong to the beams.
        kept += ["decoder_start_token_id", "forced_bos_token_id", "length_penalty", "early_stopping"] * decodes_apart
        settings = {name: value for name in kept if (value := getattr(stored, name)) is not None}
        pad = min(self._ends) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._settings: dict[str, Any] = {"length_penalty": 1.0, "pad_token_id": pad} | settings
        self._settings |= {"eos_token_id": sorted(self._ends), "max_new_tokens": tokens}
        self._settings |= {"num_beams": self.architecture.beams, "do_sample": False}
        self.network.generation_config = transformers.GenerationConfig(**self._settings)

    def provenance(self) -> dict[str, Any]:
        processor, kinds = self.processor_source, ("*.json", "*.txt", "*.jinja", "*.model")
        return {
            **super().provenance(),
            "checkpoint_sha256": files_sha256(self.checkpoint, self.checkpoint.glob("*.safetensors")),
            "network": type(self.network).__name__,
            "transformers": transformers.__version__,
            "processor_sha256": files_sha256(processor, (one for kind in kinds for one in processor.glob(kind))),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "generation": dict(self._settings),
            "together": self._together,
            "yes_no_tokens": [list(side) for side in self._yes_no],
        }


def _place(source: str, option: str) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source):
        raise UsageError(f"The folder {source} does not exist. Check --model.{option}.")
    try:
        return Path(hf_hub_download(source, "config.json", local_files_only=True)).parent
    except (OSError, ValueError):
        absent = f"--model.{option} {source} is not a folder and was not downloaded"
        raise UsageError(f"{absent}: run `hf download {source}` first.") from None


def load_network(cls: Any, folder: Path, dtype: str, advice: str, **options: Any) -> Any:
    """Return a network of transformers, or a UserError with `advice` unless its weights match exactly."""
    whole = f"Weights must be complete and in safetensors format. {advice}"
    with explained(f"The weights in {folder} cannot be loaded as {cls.__name__}", whole):
        network, report = cls.from_pretrained(
            folder,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the error below lists them with the rest
            output_loading_info=True,
            **OFFLINE,
            **options,
        )
    kinds = ("missing", "unexpected", "mismatched")
    misfits = {kind: sorted(map(str, report.get(f"{kind}_keys") or ())) for kind in kinds}
    if any(misfits.values()):
        listed = "; ".join(f"{len(names)} {kind} ({', '.join(names[:3])})" for kind, names in misfits.items() if names)
        raise UserError(f"The weights in {folder} do not fit {cls.__name__}: {listed}. {advice}")
    return network.eval().requires_grad_(False)
