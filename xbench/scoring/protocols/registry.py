"""The named ways in which the field scores maps: who does it how, and what is wrong with it.

`xbench.scoring.protocols` computes them, docs/protocols.md describes them at length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Average = Literal["findings", "pairs", "squares", "sums", "images"]
"""Mean over a finding's pairs, then over findings; mean over all pairs; mean over all pairs weighted by the number of
pairs of their finding, which then counts with its square; a ratio of two sums over a finding's pairs, averaged over
findings; or a number of a finding's images together, averaged over findings."""

RATIOS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "lesions": {
        "lesion_recall": ("found", "lesions"),
        **{f"recall_{size}": (f"found_{size}", f"lesions_{size}") for size in ("small", "medium", "large")},
        "false_parts": ("false", "images"),
    },
    "chexlocalize": {
        "precision": ("overlap_otsu", "mask_otsu"),
        "recall": ("overlap_otsu", "region"),
        "specificity": ("clear_otsu", "outside"),
    },
}
"""Numbers that are ratios of sums, by protocol: what is divided by what, each summed over a finding's pairs."""


@dataclass(frozen=True)
class Protocol:
    """A frame, a map rule, a mask rule, a score and an average.

    Attributes:
        name: As `rescore --protocol` knows it.
        citation: Publication and code that it follows.
        rule: Map, mask and score in a few words.
        flaw: What is wrong with it, in a sentence.
        headline: The number that models are ranked by.
        numbers: Columns of the table of pairs that are averaged, with the average.
        frame: The authors' frame.
        in_frame: Whether a stored run is scored in that frame: always, on native grids, or never.
        cannot: What cannot be had from stored maps, and so is not given.
        of_negatives: Numbers of pairs without the finding, so that no other pair lacks them.
        negatives: Whether pairs without the finding are in the table.
        lower: Numbers of which less is better.
        of: What of a run is scored: its maps; its detections, which are parts of maps or answered boxes; or its
            probabilities.
    """

    name: str
    citation: str
    rule: str
    flaw: str
    headline: str
    numbers: Mapping[str, Average]
    frame: str
    in_frame: Literal["always", "native", "never"] = "never"
    cannot: tuple[str, ...] = ()
    negatives: bool = False
    of_negatives: frozenset[str] = field(default_factory=frozenset)
    lower: frozenset[str] = field(default_factory=frozenset)
    of: Literal["maps", "detections", "probabilities"] = "maps"

    def title(self, grid: str) -> str:
        """Return the name with "(our frame)" unless maps on such a grid, `native` or another, are in the authors'."""
        theirs = self.in_frame == "always" or (self.in_frame == "native" and grid == "native")
        return self.name if theirs else f"{self.name} (our frame)"


def _all(average: Average, *names: str) -> dict[str, Average]:
    return dict.fromkeys(names, average)


_AEP = ("miou", "mdice", "cnr", "hit")
_BOXES = "where several readers drew, true boxes are those around the parts of their union"
_PROTOCOLS = (
    Protocol(
        name="xbench",
        citation="arXiv:2510.19599; this project",
        rule="raw maps against regions without a threshold; IoU and Dice at 0.5 of the stretched map",
        flaw="Stretching each map to [0, 1] erases its scale, so nothing is said of images without the finding.",
        headline="rank_accuracy",
        numbers=_all(
            "findings",
            *("rank_accuracy", "rank_excess", "mass_accuracy", "pixel_auroc", "pixel_ap", "cnr"),
            *("pointing", "pointing_tolerant", "dice", "iou"),
        ),
        frame="the whole radiograph on the evaluation grid",
        in_frame="always",
    ),
    Protocol(
        name="aep",
        citation="AFLoc, Nature Biomedical Engineering 2025 (YH0517/AFLoc 940e3d7); KAF-Ground 2026 "
        "(tahsirmunna/kaf-ground d83afc6)",
        rule="cells smoothed by 1.5, central 7/8, stretched to [-1, 1], masks above 0.1 to 0.5, mean IoU; signed CNR; "
        "_sharpened: after KAF's sharpening",
        flaw='A threshold called "0.1" is 0.55 of the stretched map, and pairs whose region lies outside the crop are '
        "skipped by IoU and CNR.",
        headline="miou",
        numbers=_all("findings", *_AEP, *(f"{name}_sharpened" for name in ("miou", "cnr"))),
        frame="the radiograph padded to a square of 224 or 518 pixels",
        cannot=("phrases of one finding are not told apart", "boxes are not rounded one by one as the authors do"),
    ),
    Protocol(
        name="biovil",
        citation="Boecking et al., ECCV 2022 (map: microsoft/hi-ml b67c1d2; the score is our reading of the paper)",
        rule="cosines of smoothed cells above 0.1 to 0.5, mean IoU; CNR without its sign",
        flaw="Thresholds on raw cosines favour models whose cosines are large; where none exceeds 0.1 there is no IoU.",
        headline="miou",
        numbers=_all("findings", "miou", "cnr"),
        frame="a square in the middle of the image",
        cannot=("maps that are no cosines are refused", "phrases of one finding are not told apart"),
    ),
    Protocol(
        name="chexlocalize",
        citation="Saporta et al., Nature Machine Intelligence 2022 (rajpurkarlab/cheXlocalize 2a79492)",
        rule="stretched maps, Otsu's threshold with holes filled; IoU of true positives and of the full set; first "
        "maximum in the region; precision, recall and specificity of all pixels of a finding; _tuned and _cutoff: "
        "threshold and probability cut-off of each finding tuned on the run given with --tune",
        flaw="One name, mIoU, for two slices that differ by a factor of 3 to 6: true positives, and all images.",
        headline="iou",
        numbers=_all(
            "findings",
            *("iou", "iou_full", "iou_tuned", "iou_tuned_full"),
            *("iou_cutoff", "iou_cutoff_full", "iou_tuned_cutoff", "iou_tuned_cutoff_full", "hit"),
        )
        | _all("sums", *RATIOS["chexlocalize"]),
        frame="the image's own pixels (--data.grid native)",
        in_frame="native",
        cannot=("the human benchmark is a run of its own, which `score` makes",),
        negatives=True,
    ),
    Protocol(
        name="radzero",
        citation="RadZero, NeurIPS 2025 (deepnoid-ai/RadZero 656ae5f)",
        rule="probabilities above the threshold with the largest mean Dice of positives; specificity: share of "
        "negatives without a pixel above it; hit: first maximum in a box, edges included",
        flaw="The threshold is picked on the test positives and then used for the specificity.",
        headline="dice",
        numbers=_all("findings", "dice", "specificity", "hit"),
        frame="the image's own pixels (--data.grid native)",
        in_frame="native",
        cannot=(
            "maps that are neither logits nor probabilities are refused",
            "the AUROC of all pixels together is not stored",
            _BOXES,
        ),
        negatives=True,
        of_negatives=frozenset(["specificity"]),
    ),
    Protocol(
        name="chex",
        citation="ChEX, ECCV 2024 (philip-mueller/chex c3f5d78)",
        rule="stretched maps above 0.1 to 0.5; all overlaps over all unions of the data set, mean over thresholds "
        "(mask_miou) and the largest (mask_biou)",
        flaw="Pixels are pooled: one large heart outweighs a hundred nodules.",
        headline="mask_miou",
        numbers=_all("pairs", "mask_miou", "mask_biou"),
        frame="a square of 1024 pixels, boxes cut to whole ones",
        cannot=("sentences are findings here", "mAP takes boxes with a weight"),
    ),
    Protocol(
        name="radvlm",
        citation="RadVLM 2025 (uzh-dqbm-cmi/RadVLM 69fe946)",
        rule="boxes of a map as in medground against boxes of its region: mean IoU over all pairs of boxes, and mAP at "
        "IoU 0.5 per image",
        flaw="Two perfect boxes score an average IoU of one half, because each is also compared with the other.",
        headline="avg_iou",
        numbers=_all("pairs", "avg_iou", "map"),
        frame="boxes as fractions",
        cannot=(_BOXES, "boxes are not merged by weighted fusion", "images without the finding are not asked"),
    ),
    Protocol(
        name="medground",
        citation="MedGround-Bench, arXiv:2605.20158 (gzxiong/medfocus 4f11faf)",
        rule="boxes around connected parts of the highest tenth of the positive values; IoU of unions of boxes; "
        "_corrected: the boxes' last row and column counted",
        flaw="The mask always has about a tenth of the positive pixels, and inclusive boxes are scored as half-open: a "
        "perfect map of 4 x 4 pixels scores 0.56.",
        headline="iou",
        numbers=_all("pairs", *("iou", "precision", "recall", "f1"), *("iou_corrected", "f1_corrected")),
        frame="the image's own pixels",
        cannot=(_BOXES,),
    ),
    Protocol(
        name="g2g",
        citation="Generate to Ground, MIDL 2025 (Felix-012/generate_to_ground 699364a)",
        rule="cells above the middle of a mixture of two Gaussians; IoU and IoU of the complements, CNR with sample "
        "variances, first maximum, AUROC of pixels",
        flaw="The background term of the mean IoU is near 1, and findings weigh with the square of their number.",
        headline="miou",
        numbers=_all("squares", *("iou", "miou", "bboxiou", "bboxmiou", "cnr", "top1", "aucroc", "distance")),
        frame="512 x 512 pixels, maps of 64 x 64 cells",
        cannot=("the official fit begins at random, ours as scikit-learn's with the seed 0",),
        lower=frozenset(["distance"]),
    ),
    Protocol(
        name="radfact",
        citation="RadFact (microsoft/RadFact 72463ac)",
        rule="boxes of a map as in medground against boxes of its region, as masks of 224 x 224",
        flaw="Precision alone decides whether a phrase is grounded, so a small box in a large lesion is perfect.",
        headline="precision",
        numbers=_all("findings", "iou", "precision", "recall"),
        frame="boxes as fractions, on 224 x 224 pixels",
        cannot=(_BOXES, "entailment of phrases takes a language model"),
    ),
    Protocol(
        name="lesions",
        citation="this project",
        rule="connected parts of the stretched map at 0.5; an annotated item is found if one part covers half of it, "
        "small below 1%, large above 5% of the film; false_parts: parts of an image that touch no item",
        flaw="A part that covers the whole lung finds every lesion in it, so read the recall beside Dice.",
        headline="lesion_recall",
        numbers=_all("sums", *RATIOS["lesions"]),
        frame="the whole radiograph on the evaluation grid",
        in_frame="always",
        cannot=(
            "what several readers drew of one lesion is several items",
            "images without the finding are left out, for their stretched maps light up always",
        ),
    ),
    Protocol(
        name="alarms",
        citation="this project; false_alarm is 1 less the specificity of RadZero, NeurIPS 2025",
        rule="maps on their own scale above a threshold that is not chosen on these images: of each finding the one "
        "with the largest mean Dice on the run given with --tune, or else 0.5 of a probability; false_alarm and "
        "area_lit of images without the finding, dice and hit (a pixel above it in the region) of those with it",
        flaw="One pixel above the threshold is an alarm, however far below it the rest of the map lies.",
        headline="dice",
        numbers=_all("findings", "false_alarm", "area_lit", "dice", "hit"),
        frame="the whole radiograph on the evaluation grid",
        in_frame="always",
        cannot=("maps that are no cosines, logits or probabilities are refused, and cosines without --tune",),
        negatives=True,
        of_negatives=frozenset(["false_alarm", "area_lit"]),
        lower=frozenset(["false_alarm", "area_lit"]),
    ),
    Protocol(
        name="detections",
        citation="this project; FROC at the rates of LUNA16, average precision of COCO (Lin et al., ECCV 2014)",
        rule="connected parts of the stretched map at 0.5, ranked by their highest raw value, or answered boxes by "
        "their confidence; each finds one annotated item, at an IoU of 0.3 (froc, sensitivity), 0.3 and 0.5 (ap_) or "
        "0.1 to 0.5 (map); sensitivity: at one false detection an image, small below 1%, large above 5% of the film",
        flaw="The parts at 0.5 of a stretched map have no lesion's outline, so maps lose to boxes whatever they show.",
        headline="froc",
        numbers=_all("images", "froc", "sensitivity", "map", "ap_30", "ap_50")
        | _all("images", *(f"sensitivity_{size}" for size in ("small", "medium", "large"))),
        frame="the whole radiograph on the evaluation grid, or without a grid",
        in_frame="always",
        cannot=(
            "what several readers drew of one lesion is several items in maps, and left out of boxes",
            "boxes without a confidence, and maps whose values say nothing between images, are refused",
            "a model that was not asked about images without the finding has no false detections there",
        ),
        negatives=True,
        of="detections",
    ),
    Protocol(
        name="calibration",
        citation="Naeini et al., AAAI 2015 (ece); Nixon et al., CVPR workshops 2019 (ece_adaptive); Brier 1950",
        rule="probabilities against labels in 15 bins; ece_adaptive: in bins of equal counts; ece_by_chance: what "
        "labels drawn from the probabilities themselves would give",
        flaw="The error of a finite number of images is never 0: read it beside ece_by_chance.",
        headline="ece",
        numbers=_all("images", "ece", "ece_adaptive", "ece_by_chance", "mce", "brier"),
        frame="none: no pixel is looked at",
        in_frame="always",
        cannot=("findings whose label is unknown, and pairs without a probability, are left out",),
        negatives=True,
        lower=frozenset(["ece", "ece_adaptive", "ece_by_chance", "mce", "brier"]),
        of="probabilities",
    ),
)
PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in _PROTOCOLS}
