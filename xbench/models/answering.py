"""Base class of models that answer in boxes, points or words where a finding is, and draw no map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from xbench.findings.questions import Questions
from xbench.geometry.preprocessing import Preprocessing, WholeRadiograph
from xbench.models.base import SaliencyModel
from xbench.predictions import family_named
from xbench.predictions.asking import READER, TEXTS, Kind, Question, Reply
from xbench.predictions.conventions import Convention
from xbench.runtime.errors import UsageError, UserError
from xbench.types import Answers, Batch, Prediction

Ask = Literal["boxes", "report", "where"]


class AnsweringModel(SaliencyModel):
    """A model that is asked about findings one by one.

    A subclass implements `ask` and passes these arguments on. It gets whole radiographs of any size as
    `Batch.radiographs`, resizes, crops and pads them itself, and declares the frame of its numbers for all images or
    with each reply.

    Args:
        family: Format of the answers: a name in `xbench.predictions.FAMILIES`.
        frame: Meaning of the answers' numbers; by default the family's own.
        prompts: A YAML file of questions; by default the package's for this family.
        ask_negatives: Whether to ask where a finding is on images without it too, to count false alarms there.
        recognise: Whether to ask if a finding is present, on each image whose label is known.
        ask: Ask for `boxes`, or for words: a `report` of each image, or an answer to `where` a finding is.
    """

    answers = True
    recognizes: bool = True  # whether the model can be asked if a finding is present
    asked_in_words: bool = True  # whether it has questions at all
    preprocessing: Preprocessing = WholeRadiograph()

    def __init__(
        self,
        family: str,
        frame: str | None = None,
        prompts: str | None = None,
        ask_negatives: bool = False,
        recognise: bool = False,
        ask: Ask = "boxes",
    ) -> None:
        super().__init__()
        self.asks: Kind = "locate" if ask == "boxes" else ask
        self.answers = ask == "boxes"  # words are not scored as boxes
        self.family = family_named(family)
        self.convention = self.family.convention if frame is None else Convention.named(frame)
        self.questions = Questions.of(family if prompts is None else prompts) if self.asked_in_words else None
        self._ask_negatives, self._recognise = ask_negatives, recognise
        self.spent = 0  # tokens that this process sent and received, without cached ones
        self.repeats = 1  # how often to ask where a finding is; the first answer is scored
        if recognise and not (self.recognizes and (self.questions is None or self.questions.recognise)):
            why = ", because its questions have none under recognise" if self.recognizes else ""
            what = f"{self.name} cannot be asked whether a finding is there{why}"
            raise UsageError(f"--model.recognise true: {what}. Leave the option out.")

    def setup(self, stage: str) -> None:
        super().setup(stage)
        changed = getattr(self.trainer.datamodule, "interventions", ())  # type: ignore[attr-defined]
        if self.asks in TEXTS and (self._recognise or self.repeats > 1 or changed):
            of_boxes = "--model.recognise, --model.repeats and --data.interventions need --model.ask boxes"
            raise UsageError(f"--model.ask {self.asks}: {of_boxes}. Leave them out.")
        self._words = {finding: self.words(finding) for finding in self.findings}

    def words(self, finding: str) -> dict[Kind, str]:
        """Return the questions about a finding by kind; raise a UserError if there are no words for it."""
        kinds: tuple[Kind, ...] = (self.asks, "recognise") if self._recognise else (self.asks,)
        return {kind: "" if self.questions is None else self.questions.text(kind, finding) for kind in kinds}

    def input_problem(self, batch: Batch, seen: Tensor | None = None) -> None:
        """Return None, because nothing is normalized."""

    @abstractmethod
    def ask(self, batch: Batch, queries: Sequence[Question]) -> Sequence[Reply]:
        """Return replies in the order of the queries; raise a UserError if one is missing, never an empty reply."""

    def questions_about(self, batch: Batch) -> list[Question]:
        """Return the questions of a batch: where findings are, these again for `repeats`, then whether they are
        present.

        Phrases are only located, because an absent phrase does not mean an absent finding. A report is asked once per
        image.
        """
        truth = batch.truth
        system = None if self.questions is None else self.questions.system
        if self.asks == "report":
            text = self.words("")["report"]
            return [Question("report", row, -1, "", text, system) for row in range(len(truth.image_ids))]
        where = truth.scored | ((truth.labels == 0) & self._ask_negatives)
        asked: list[tuple[Kind, int, Any]] = [(self.asks, 0, where)]
        asked += [("again", turn, where) for turn in range(1, self.repeats)]
        if self._recognise:
            asked.append(("recognise", 0, (truth.labels >= 0) & [query.text is None for query in truth.queries]))
        return [
            Question(kind, int(truth.image[pair]), pair, query.name, words["locate" if turn else kind], system, turn)
            for kind, turn, pairs in asked
            for pair in np.flatnonzero(pairs).tolist()
            for query in (truth.queries[pair],)
            for words in (self._words[query.name] if query.text is None else self.words(query.text),)
        ]

    def score(self, batch: Batch) -> Prediction:
        questions = self.questions_about(batch)
        replies = list(self.ask(batch, questions)) if questions else []
        if len(replies) != len(questions):
            raise UserError(f"{self.name}: {len(replies)} replies to {len(questions)} queries.")
        new = [reply for reply in replies if not reply.from_cache]
        self.spent += sum((reply.tokens_in or 0) + (reply.tokens_out or 0) for reply in new)
        if self.asks in TEXTS:
            return Prediction(None, None, None, [*zip(questions, replies, strict=True)])
        scores = np.full((2, len(batch.truth.queries)), np.nan)
        shown = Answers([None] * len(batch.truth.queries), list(zip(questions, replies, strict=True)))
        for question, reply in shown.replies:
            if question.kind == "recognise":
                decision = reply.recognition()
                values = [np.nan if value is None else value for value in (decision.logit, decision.probability)]
                scores[:, question.pair] = values
                continue
            height, width = batch.truth.image_sizes[question.row] or batch.radiographs[question.row].shape
            answer = reply.read(self.family, self.convention, (width, height))
            if question.kind == "again":
                shown.repeated.append(answer)
            else:
                shown.answers[question.pair] = answer
        logits, probabilities = torch.from_numpy(scores)
        return Prediction(logits, probabilities, shown) if self._recognise else Prediction(None, None, shown)

    def check_words(self, finding: str) -> None:
        self.words(finding)

    def asked_of(self, positive: int, negative: int, annotated: int, phrases: bool = False) -> int:
        """Return the number of queries about a finding, or about its phrases, from the numbers of its images."""
        located = annotated + self._ask_negatives * negative
        return self.repeats * located + (self._recognise and not phrases) * (positive + negative)

    def predict_step(self, batch: Batch, batch_idx: int) -> None:
        raise UsageError(f"{self.name} draws no maps, which predict writes. Use test.")

    def provenance(self) -> dict[str, Any]:
        about = super().provenance() | {"family": self.family.name, "frame": self.convention.name, "reader": READER}
        about |= {"ask": self.asks} if self.asks in TEXTS else {}
        if (questions := self.questions) is not None:
            about["prompts"] = {finding: [words[self.asks]] for finding, words in self._words.items()}
            about |= {"questions_sha256": questions.sha256, "questions_source": questions.source}
        return about


def pad_to_square(picture: Image.Image, side: int) -> Image.Image:
    """Return a picture in the middle of a black square, as the conventions of padded images assume."""
    square = Image.new(picture.mode, (side, side))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square
