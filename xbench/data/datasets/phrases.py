"""The phrases of an image, put together from the rows of an annotation file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xbench.data.annotations.items import Annotation, Drawn
from xbench.data.datasets.downloaded import ImageAnnotations
from xbench.findings.queries import Query
from xbench.runtime.errors import UserError


class ImagePhrases:
    """The phrases of one image, in the order of a file.

    Phrases of one finding that differ in capitals and space alone are one, and its region is the union of all that is
    drawn for them. Each is called after its finding, with a number. `language` is the tag of all, such as `en`.
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
        """Add what an entry of the file says of a phrase; return whether it contradicts an earlier entry.

        A label is 1 present, 0 absent, None or -1 unknown; what is drawn, or present in one entry, is present. `others`
        is what further readers drew. Raises a UserError for no text, no label, and a drawing of an absent phrase.
        """
        words = "".join(one if one.isprintable() else " " for one in text).split() if isinstance(text, str) else []
        if not words:
            raise UserError(f"a phrase is {text!r:.40}, not a text")
        if label not in (1, 0, -1, None):
            raise UserError(f"the label of a phrase is {label!r:.40}, not 1, 0 or, unknown, -1")
        if drawn and label == 0:
            raise UserError("something is drawn of a phrase whose label is 0, absent")
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
        """Return all that is known of the image, whose annotations are drawn in pixels of this height and width."""
        queries = tuple(self._queries.values())
        return ImageAnnotations(image_id, self._labels, tuple(self._drawn), size, queries, tuple(self._others))
