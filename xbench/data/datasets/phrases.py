"""Phrases of an image, from the rows of an annotation file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xbench.data.annotations.items import Annotation, Drawn
from xbench.data.datasets.downloaded import ImageAnnotations
from xbench.findings.queries import Query
from xbench.runtime.errors import UserError


class ImagePhrases:
    """The phrases of one image, in file order.

    Phrases of a finding that differ only in case and spaces are merged, and their regions united. Names are the finding
    and a number. `language` is a tag such as `en`.
    """

    def __init__(self, language: str | None = None) -> None:
        self._language = language
        self._queries: dict[tuple[str | None, str], Query] = {}
        self._labels: dict[str, int] = {}
        self._drawn: list[Annotation] = []
        self._others: list[Annotation] = []
        self._number: Counter[str | None] = Counter()

    def add(
        self, text: object, finding: str | None, label: object, drawn: Sequence[Drawn], others: Sequence[Drawn] = ()
    ) -> bool:
        """Add an entry for a phrase; return whether it contradicts an earlier one.

        A label is 1 present, 0 absent, None or -1 unknown; drawn phrases are present. `others` are further readers'
        annotations. Raise a UserError for an invalid text or label, and for an annotation of an absent phrase.
        """
        words = "".join(one if one.isprintable() else " " for one in text).split() if isinstance(text, str) else []
        if not words:
            raise UserError(f"a phrase is {text!r:.40}, not a text")
        if label not in (1, 0, -1, None):
            raise UserError(f"the label of a phrase is {label!r:.40}, not 1, 0, or -1 for unknown")
        if drawn and label == 0:
            raise UserError("a phrase with the label 0, absent, has an annotation")
        text = " ".join(words)
        key = finding, text.casefold()
        if key not in self._queries:
            self._number[finding] += 1
            name = f"{finding or 'Phrase'} {self._number[finding]}"
            self._queries[key] = Query(name, finding, text, self._language)
        name = self._queries[key].name
        self._drawn += [Annotation(name, item) for item in drawn]
        self._others += [Annotation(name, item) for item in others]
        present = 1 if drawn else label
        if present not in (0, 1):
            return False
        known = self._labels.setdefault(name, int(present))
        self._labels[name] = max(known, int(present))
        return known != present

    def case(self, image_id: str, size: tuple[int, int] | None = None) -> ImageAnnotations:
        """Return the image's phrases; `size` is the height and width that its annotations refer to."""
        queries = tuple(self._queries.values())
        return ImageAnnotations(image_id, self._labels, tuple(self._drawn), size, queries, tuple(self._others))
