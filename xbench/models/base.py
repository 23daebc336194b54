"""Base classes of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, get_args

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from xbench.findings.names import canonical
from xbench.findings.prompts import STYLES, prompts_in_style, read_prompts
from xbench.geometry.grid import Upsampling
from xbench.geometry.preprocessing import Preprocessing
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.notes import CUT_OFF_NOTE, INPUT_NOTE
from xbench.types import Batch, Maps, MapScale, ModelOutput, Note, Prediction, Truth

_KEPT_BYTES = 2**28
"""Size of encoded phrases to keep on the device for later batches."""

_CUT: ContextVar[list[str] | None] = ContextVar("_CUT", default=None)


class SaliencyModel(pl.LightningModule, ABC):
    """Base class for models that return a score and a saliency map for each finding of a radiograph.

    Vision-language models derive from `VLM`, models that read no text directly from this class.

    Attributes:
        name: Short name in results and run folders; the lower-case class name by default.
        preprocessing: The model's preprocessing. Set it in the constructor.
        findings: Names of the dataset's C findings, set by `setup`.
        seen: Input of the first layer in the first batch (B, 3, h, w), unless the model is compiled.
        saliency_upsample: How to enlarge maps to the evaluation grid.
        map_scale: What the values of the raw maps are; `none` if they do not compare between images.
        map_sigma: Standard deviation in cells of the Gaussian that smooths the maps; 0 for none.
        answers: Whether the model answers in boxes, points or words instead of maps.
        scores: Whether the model decides if findings are present; otherwise its scores are ignored.
        exploratory: Reason why the maps are exploratory, as the end of a sentence; empty if the authors published them.
        trained_on: Datasets whose labels trained a supervised model, by xbench's names where they exist.
        neutral_options: Options that change no number; added to those of parents. Runs that differ only in these are
            one.
        stated: Attributes to record in the provenance, added to those of parents; `text_encoder` records `text_source`.
        checkpoint_part: Attribute that holds the tensors of the checkpoint; empty for the whole model.
    """

    name: str = ""
    preprocessing: Preprocessing
    findings: tuple[str, ...]
    seen: Tensor | None = None
    saliency_upsample: Upsampling = "bilinear"
    map_scale: MapScale = "none"
    map_sigma: float = 0.0
    answers: bool = False
    scores: bool = True
    exploratory: str = ""
    trained_on: tuple[str, ...] = ()
    neutral_options: ClassVar[frozenset[str]] = frozenset()
    stated: ClassVar[str] = ""
    checkpoint_part: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def setup(self, stage: str) -> None:
        """Set `findings` from the data module, and check `saliency_upsample` and `map_scale`."""
        for attribute, known in (("saliency_upsample", get_args(Upsampling)), ("map_scale", get_args(MapScale))):
            if (value := getattr(self, attribute)) not in known:
                raise UsageError(f"{self.name}: {attribute} is {value!r}; give one of {', '.join(known)}.")
        self.findings = tuple(self.trainer.datamodule.findings)  # type: ignore[attr-defined]

    def input_problem(self, batch: Batch, seen: Tensor | None = None) -> str | None:
        """Return what is wrong with the normalized images of a batch or the input of the first layer, or None."""
        return self.preprocessing.problem(batch.images, batch.display, seen)

    @abstractmethod
    def score(self, batch: Batch) -> ModelOutput | Prediction:
        """Score a batch of at least one image on its device, by `findings` or, as a `Prediction`, by pairs."""

    def predict(self, batch: Batch) -> Prediction:
        """Score the pairs of a batch of at least one image; raise a UserError if the output has the wrong shape."""
        output = self.score(batch)
        if isinstance(output, ModelOutput):
            return self._picked(batch.truth, output, self.findings, [query.name for query in batch.truth.queries])
        shown = output.shown.values if isinstance(output.shown, Maps) else None
        self._check_shapes((len(batch.truth.queries),), output.logits, output.probabilities, shown)
        return output

    def _picked(self, truth: Truth, output: ModelOutput, asked: Sequence[Any], wanted: Sequence[Any]) -> Prediction:
        images, classes = len(truth.image_ids), len(asked)
        parts = output.logits, output.probabilities, output.saliency
        self._check_shapes((images, classes), *parts)
        if unknown := [one for one in wanted if one not in asked]:
            raise UserError(f"{self.name} reads no text, so it cannot be asked about {unknown[0]!r:.80}.")
        places = np.array([asked.index(one) for one in wanted], np.int64) + truth.image * classes
        logits, probabilities, maps = (part.flatten(0, 1) for part in parts)
        if not np.array_equal(places, np.arange(images * classes)):
            chosen = torch.from_numpy(places)
            logits, probabilities, maps = (part[chosen.to(part.device)] for part in (logits, probabilities, maps))
        return Prediction(logits, probabilities, Maps(maps)) if self.scores else Prediction(None, None, Maps(maps))

    def smoothed(self, maps: Tensor) -> Tensor:
        """Smooth maps (..., h, w) by a Gaussian of `map_sigma` cells, mirrored at the edges as in SciPy."""
        if not self.map_sigma:
            return maps
        rows, columns = (_gaussian(size, self.map_sigma).to(maps) for size in maps.shape[-2:])
        return rows @ maps @ columns.mT

    def _check_shapes(self, expected: tuple[int, ...], *parts: Tensor | None) -> None:
        names = ("logits", "probabilities", "saliency")
        shapes = {name: tuple(part.shape) for name, part in zip(names, parts, strict=True) if part is not None}
        maps = shapes.get("saliency", (*expected, 1, 1))
        whole = len(expected)
        if any(shape[:whole] != expected for shape in shapes.values()) or len(maps) != whole + 2 or 0 in maps[whole:]:
            what = f"{expected[0]} images and {expected[1]} findings" if whole == 2 else f"{expected[0]} pairs"
            raise UserError(
                f"{self.name}: for {what}, logits and probabilities must be {expected} and saliency {expected} + "
                f"(h, w), but the model returned {', '.join(f'{name} {shape}' for name, shape in shapes.items())}."
            )

    def test_step(self, batch: Batch, batch_idx: int) -> Prediction | None:  # type: ignore[override]
        """Return the output for the pairs of a batch, or None if none of its images could be read."""
        if not batch.truth.queries:
            return Prediction(None, None, None) if len(batch) else None
        # A hook would compile the code twice.
        if batch_idx or self._compiled_call_impl is not None:
            return self.predict(batch)
        with first_layer_input(batch) as seen:
            prediction = self.predict(batch)
        self.seen = next(iter(seen), None)
        return prediction

    def predict_step(self, batch: Batch, batch_idx: int) -> Prediction | None:
        if not batch.truth.queries:
            return Prediction(None, None, Maps(torch.zeros(0, 1, 1))) if len(batch) else None
        return self.predict(batch)

    def problems(self, findings: Sequence[str]) -> list[str]:
        """Return the problems that `check` finds, one sentence each: findings without words."""
        problems: dict[str, None] = {}
        for finding in findings:
            try:
                self.check_words(finding)
            except UserError as error:
                problems[str(error)] = None
        return [*problems]

    def check_words(self, finding: str) -> None:
        """Raise a UserError if the model has no words for a finding; by default it needs none."""

    def weights(self) -> Mapping[str, Tensor]:
        """Return the model's tensors by their names in the checkpoint."""
        return self.get_submodule(self.checkpoint_part).state_dict()

    def remarks(self) -> Mapping[str, str]:
        """Return notes for `convert` to store with the tensors."""
        return {}

    def provenance(self) -> dict[str, Any]:
        """Return the settings and digests that the numbers depend on, as plain values; by default the `stated` ones."""
        names = " ".join(vars(part).get("stated", "") for part in type(self).__mro__).split()
        about = {name: getattr(self, "text_source" if name == "text_encoder" else name) for name in names}
        if path := about.get("checkpoint"):
            about |= {"checkpoint": str(path), "checkpoint_sha256": file_sha256(path)}
        return about


@cache
def _gaussian(size: int, sigma: float) -> Tensor:
    from scipy.ndimage import gaussian_filter1d  # imported here because it is slow to import

    return torch.from_numpy(gaussian_filter1d(np.eye(size), sigma, axis=0))


@contextmanager
def first_layer_input(batch: Batch) -> Iterator[list[Tensor]]:
    """Record the input of the first layer that takes the images of a batch, (B, 3, h, w) or (B, 1, h, w)."""
    inputs: list[Tensor] = []

    def keep(layer: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        images = arguments[0] if arguments else None
        if inputs or not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            return
        # A layer with children, such as the model itself, may normalize before it calls them.
        innermost = any(True for _ in layer.parameters()) and not any(True for _ in layer.children())
        # Grayscale networks take one of the three equal channels.
        if innermost and len(images) == len(batch) and images.shape[1] in (1, 3):
            inputs.append(images.detach().clone())

    with register_module_forward_pre_hook(keep):
        yield inputs


class VLM(SaliencyModel):
    """A vision-language model. Prompts are encoded once, images batch by batch.

    A subclass implements `encode_prompts` and `forward`. It sets `wording` or overrides `default_prompts`, and passes
    these arguments on. It can be called with images and queries outside a trainer too.

    Args:
        prompts: Words for the findings instead of the model's own: a style of the package (`name`, `phrase`,
            `description` or `aspects`), or a JSON or YAML file with one or more texts for each finding.
        compile: Compile `forward` with torch.compile, which starts slower and runs faster.
        channels_last: Use the channels-last memory format, which speeds up convolutions.
    """

    prompts: list[list[str]]
    queries: Any
    wording: ClassVar[str] = "{}"
    """Sentence around names, the package's phrases, and texts that `cleaned` would leave empty."""
    called: ClassVar[Mapping[str, str]] = {}
    """The authors' names for findings in prompts, where they differ."""
    cleaned: Any = staticmethod(str)
    columns: Sequence[int] | None = None
    """Positions of the findings in the prompts, for a model that asks for more."""

    def __init__(self, prompts: str | None = None, compile: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        self.prompt_source = prompts
        self._compile_forward = compile
        self._channels_last = channels_last
        if not (prompts is None or prompts in STYLES or Path(prompts).expanduser().exists()):
            styles = ", ".join(STYLES)
            raise UsageError(f"--model.prompts {prompts} is neither a style ({styles}) nor a file that exists.")
        self._encoded: dict[tuple[str, ...], Any] = {}
        self._cut_off: dict[Any, str] = {}
        # By canonical name if there is one.
        self._given_prompts: dict[str, list[str]] = {}
        for name, texts in () if prompts is None or prompts in STYLES else read_prompts(prompts).items():
            finding = canonical(name) or name
            if finding in self._given_prompts:
                raise UsageError(f"--model.prompts {prompts} has {finding} twice, once as {name}.")
            self._given_prompts[finding] = texts

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.prompts = [list(self.prompts_of(finding)) for finding in self.findings]

    def input_problem(self, batch: Batch, seen: Tensor | None = None) -> str | None:
        if self.preprocessing.stated:
            return super().input_problem(batch, seen)
        return (
            f"{INPUT_NOTE}: its preprocessing has neither mean nor std. Give `Preprocessing` those of the training, or "
            "zeros and ones if the model was trained on pixels in [0, 1]"
        )

    def prompts_of(self, finding: str) -> Sequence[str]:
        """Return the prompts of a finding in the requested words; raise a UserError if there are none."""
        if self.prompt_source is None:
            return self.default_prompts(finding)
        if self.prompt_source in STYLES:
            return self.word_prompts(finding, prompts_in_style(self.prompt_source, finding))
        if finding not in self._given_prompts:
            raise UsageError(
                f"--model.prompts {self.prompt_source} has no prompt for {finding}; it has "
                f"{', '.join(self._given_prompts) or 'none'}. Add one."
            )
        return self.word_prompts(finding, self._given_prompts[finding])

    def check_words(self, finding: str) -> None:
        if not [*self.prompts_of(finding)]:
            raise UserError(f"{self.name} has no prompt for {finding}.")

    def default_prompts(self, finding: str) -> Sequence[str]:
        """Return the prompts of a finding, as many as `encode_prompts` takes."""
        return [self.wording.format(self.called.get(finding, finding))]

    def word_prompts(self, finding: str, texts: Sequence[str]) -> Sequence[str]:
        """Return prompts made from other words for a finding, one or more texts."""
        plain = self.prompt_source in ("name", "phrase")
        return [self.wording.format(text) if plain or not self.cleaned(text) else text for text in texts]

    def phrase_prompts(self, text: str) -> Sequence[str]:
        """Return the prompts of a phrase, as many as for a finding."""
        return self.word_prompts(text, [text])

    def one_of_each(self, prompts: Sequence[Sequence[str]]) -> list[str]:
        """Return the prompts of C classes for a model that takes one each; raise a UserError for any other number."""
        if any(len(of_class) != 1 for of_class in prompts):
            raise UsageError(
                f"{self.name} takes exactly one prompt per finding: give --model.prompts a style other than aspects, "
                "or a file with one text for each finding."
            )
        return [prompt for (prompt,) in prompts]

    @abstractmethod
    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Any:
        """Encode the prompts of C classes into what `forward` needs, on the model's device."""

    @abstractmethod
    def forward(self, images: Tensor, queries: Any) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against the queries of C classes."""

    def on_test_start(self) -> None:
        """Encode the prompts, and apply `channels_last` and `compile`."""
        asked = self.asked()
        self.queries = self.encode_prompts(asked) if asked else None
        if self._channels_last:
            self.to(memory_format=torch.channels_last)
        if self._compile_forward:
            self.compile()

    on_predict_start = on_test_start

    def asked(self) -> Sequence[Sequence[str]]:
        """Return the prompts to encode for a run, by class: by default those of the findings."""
        return self.prompts

    def predict(self, batch: Batch) -> Prediction:
        """Score all images with all findings, and each distinct text alone: scores may depend on the other prompts."""
        wanted = [
            name
            if text is None and name in self.findings
            else tuple(self.prompts_of(name) if text is None else self.phrase_prompts(text))
            for name, _, text, _ in batch.truth.queries
        ]
        texts = [*dict.fromkeys(words for words in wanted if isinstance(words, tuple))]
        if not texts:
            return super().predict(batch)
        findings = [*self.findings] if any(isinstance(words, str) for words in wanted) else []
        outputs = [self.score(batch)] if findings else []
        fixed = self.queries, self.columns
        with torch.autocast(self.device.type, enabled=False):
            self.queries, self.columns = self._encode(texts), None
        try:
            outputs.append(self.score(batch))
        finally:
            self.queries, self.columns = fixed
        asked = ((words, batch.truth.image_ids[image]) for words, image in zip(wanted, batch.truth.image, strict=True))
        notes = (Note(self._cut_off[words], image_id) for words, image_id in asked if words in self._cut_off)
        batch.notes += dict.fromkeys(notes)
        columns = ([getattr(one, name) for one in outputs] for name in ("logits", "probabilities", "saliency"))
        output = ModelOutput(*(torch.cat(parts, dim=1) for parts in columns))
        return self._picked(batch.truth, output, [*findings, *texts], wanted)

    def _encode(self, asked: Sequence[tuple[str, ...]]) -> Any:
        """Encode prompts one by one, or together if the results cannot be joined; keep results up to `_KEPT_BYTES`."""
        for prompts in asked:
            known = self._encoded.pop(prompts, None)
            if known is None:
                with cutting_off() as notes:
                    known = self.encode_prompts([prompts])
                if notes:
                    self._cut_off[prompts] = notes[0]
            self._encoded[prompts] = known
        size = sum(map(_size, self._encoded.values()))
        for prompts in [*self._encoded][: -len(asked)]:
            if size > _KEPT_BYTES:
                size -= _size(self._encoded.pop(prompts))
        joined = _joined([self._encoded[prompts] for prompts in asked])
        with cutting_off():
            return self.encode_prompts(asked) if joined is None else joined

    def score(self, batch: Batch) -> ModelOutput:
        images = batch.images
        if self._channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        output: ModelOutput = self(images, self.queries)
        if self.columns is None:
            return output
        parts = output.logits, output.probabilities, output.saliency
        return ModelOutput(*(part[:, self.columns] for part in parts))

    def provenance(self) -> dict[str, Any]:
        source = {} if self.prompt_source is None else {"prompt_source": self.prompt_source}
        return {**super().provenance(), **source, "prompts": dict(zip(self.findings, self.prompts, strict=True))}


def _joined(parts: Sequence[Any]) -> Any:
    leaves, forms = zip(*map(pytree.tree_flatten, parts), strict=True)
    shapes, *others = [[part.shape if isinstance(part, Tensor) else () for part in of] for of in leaves]
    alike = all(form == forms[0] for form in forms) and all(other == shapes for other in others)
    if not alike or any(shape[:1] != (1,) for shape in shapes):
        return None
    return pytree.tree_unflatten([torch.cat(of) for of in zip(*leaves, strict=True)], forms[0])


def _size(encoded: Any) -> int:
    return sum(part.untyped_storage().nbytes() for part in pytree.tree_leaves(encoded) if isinstance(part, Tensor))


@contextmanager
def cutting_off() -> Iterator[list[str]]:
    """Let models cut off texts that are too long, and yield the notes about them."""
    notes: list[str] = []
    token = _CUT.set(notes)
    try:
        yield notes
    finally:
        _CUT.reset(token)


def too_long(text: str, length: int, model: str, unit: str = "tokens", refuse: bool = True) -> None:
    """Note inside `cutting_off` that a text is cut off; elsewhere raise a UserError if `refuse`."""
    notes = _CUT.get()
    if notes is not None:
        notes.append(f"{CUT_OFF_NOTE}: it is longer than the {length} {unit} that {model} reads")
    elif refuse:
        raise UserError(
            f"The prompt {text!r} is longer than the {length} {unit} that {model} reads. Shorten it, or split it if "
            "the model takes several."
        )


def check_image_size(image_size: int, cell: int) -> None:
    """Raise a UserError unless cells of `cell` x `cell` pixels tile the square input."""
    if image_size < cell or image_size % cell:
        raise UsageError(f"--model.image_size {image_size} is not a multiple of {cell}, the side of a token in pixels.")


def check_at_least_one(**options: int | None) -> None:
    """Raise a UserError if an option is below 1; None is allowed."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise UsageError(f"--model.{name} {value} must be at least 1.")
