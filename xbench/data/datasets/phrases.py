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
    drawn for them. Each is called after its finding, with a number.

    Args:
        language: Tag of the language of all of them, such as `en`.
    """

    def __init__(self, language: str | None = None) -> None:
        self._language = language
        self._queries: dict[tuple[str | None, str], Query] = {}
        self._labels: dict[str, int] = {}
        self._drawn: list[Annotation] = []
        self._number: Counter[str | None] = Counter()

    def add(
        self, text: object, finding: str | None, label: object, drawn: Sequence[Drawn] = (), category: str = ""
    ) -> bool:
        """Add what an entry of the file says of a phrase; return whether it contradicts an earlier entry.

        Args:
            text: The phrase, which becomes one line.
            finding: What it is about; None for a phrase without a finding.
            label: 1 present, 0 absent, None or -1 unknown. What is drawn is present, and so is what is once.
            drawn: Items of its region.
            category: What the file calls the finding.

        Raises:
            UserError: The text or the label is none, or something is drawn of a phrase that is absent.
        """
        line = "".join(one if one.isprintable() else " " for one in text).split() if isinstance(text, str) else []
        if not line:
            raise UserError(f"a phrase is {text!r:.40}, not a text")
        if label not in (1, 0, -1, None):
            raise UserError(f"the label of a phrase is {label!r:.40}, not 1, 0 or, unknown, -1")
        if drawn and label == 0:
            raise UserError("something is drawn of a phrase whose label is 0, absent")
        key = finding, " ".join(line).casefold()
        if key not in self._queries:
            self._number[finding] += 1
            name = f"{finding or 'Phrase'} {self._number[finding]}"
            self._queries[key] = Query(name, finding, " ".join(line), self._language)
        name = self._queries[key].name
        self._drawn += [Annotation(name, item, category) for item in drawn]
        present = 1 if drawn else label
        if present not in (0, 1):
            return False
        known = self._labels.setdefault(name, int(present))
        self._labels[name] = max(known, int(present))
        return known != present

    def case(self, image_id: str, size: tuple[int, int] | None = None) -> ImageAnnotations:
        """Return all that is known of the image, whose annotations are drawn in pixels of this height and width."""
        return ImageAnnotations(image_id, self._labels, tuple(self._drawn), size, tuple(self._queries.values()))
