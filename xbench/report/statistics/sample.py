"""Labels and scores of a run, sorted by name so that runs line up row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from xbench.report.runs import Run
from xbench.scoring.numbers import dice, iou


@dataclass(frozen=True)
class Sample:
    """Labels and scores of N images, C findings and P scored pairs, by K clusters.

    Images and clusters are sorted by name, pairs by image and finding.

    Attributes:
        clustered_by: A cluster is all images of a patient if every patient is known, else one image.
        image_cluster: Index of each image's cluster (N,).
        labels: 1 present, 0 absent, -1 unknown (N, C) int8.
        probabilities: (N, C); NaN without recognition.
        pair_image, pair_column: Indices of each scored pair's image and finding (P,).
        hit: Value in the pointing game (P,), 0 to 1; the chance of a hit if `chances`; a share of area if `boxes`.
        dice, iou: Scores at each threshold (P, T); T is 1 for boxes.
        area: Share of the evaluation grid that the region takes (P,).
        region: Digest of each pair's region on the grid (P,).
        row: Index of each pair among the rows of its run (P,).
    """

    findings: tuple[str, ...]
    clustered_by: Literal["patients", "images"]
    clusters: tuple[str, ...]
    image_ids: tuple[str, ...]
    image_cluster: NDArray[np.int64]
    labels: NDArray[np.int8]
    probabilities: NDArray[np.float64]
    pair_image: NDArray[np.int64]
    pair_column: NDArray[np.int64]
    hit: NDArray[np.float64]
    dice: NDArray[np.float64]
    iou: NDArray[np.float64]
    area: NDArray[np.float64]
    region: NDArray[np.bytes_]
    row: NDArray[np.int64]
    chances: bool = False
    boxes: bool = False

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return the sample of a run."""
        images, counts, answers = run.images, run.rows.counts, run.results.answers
        order = np.argsort(np.array(images.image_ids, dtype=object), kind="stable")
        rank = np.argsort(order)
        index, column = run.rows.image[counts.row], run.rows.finding[counts.row]
        pair_order = np.lexsort([column, rank[index]])
        # Phrases without a finding are in no table.
        pair_order = pair_order[column[pair_order] >= 0]
        index, column = index[pair_order], column[pair_order]
        pixels = [part[pair_order] for part in (counts.mask, counts.overlap, counts.region[:, None])]
        row = counts.row[pair_order]
        known = None not in images.patient_ids
        names = np.array(images.patient_ids if known else images.image_ids, dtype=object)[order]
        clusters, place = np.unique(names, return_inverse=True)
        counted = answers is not None and answers.recognition is not None
        return cls(
            findings=run.results.findings,
            clustered_by="patients" if known else "images",
            clusters=tuple(clusters.tolist()),
            image_ids=tuple(images.image_ids[place] for place in order),
            image_cluster=place.astype(np.int64),
            labels=images.labels[order],
            probabilities=(images.counted_probabilities if counted else images.probabilities)[order],
            pair_image=rank[index],
            pair_column=column,
            hit=run.rows["pointing_hit"][row],
            dice=dice(*pixels),
            iou=iou(*pixels),
            area=run.rows["region_area"][row],
            region=run.rows["region_digest"][row].astype("S16"),
            row=row,
            boxes=run.results.answered == "boxes",
        )

    @cached_property
    def pair_cluster(self) -> NDArray[np.int64]:
        """Cluster of each scored pair (P,)."""
        return self.image_cluster[self.pair_image]

    @property
    def fixed(self) -> int:
        """Place of the fixed threshold, 0.5, among the T."""
        return int(self.dice.shape[1]) // 2

    def with_pairs(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Return the sample with some of its pairs, by a mask (P,) or by their indices, in that order."""
        names = ("pair_image", "pair_column", "hit", "dice", "iou", "area", "region", "row")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    @property
    def one_mask(self) -> bool:
        """Whether pairs have one mask each, as boxes do, instead of one at each threshold."""
        return bool(self.dice.shape[1] == 1)

    @property
    def regions(self) -> NDArray[np.bytes_]:
        """Digests of the regions of scored pairs by image and finding (N, C); empty for the others."""
        # Several phrases of a finding: their sum identifies them all.
        regions = np.zeros((*self.labels.shape, 2), np.uint64)
        np.add.at(regions, (self.pair_image, self.pair_column), self.region.view(np.uint64).reshape(-1, 2))
        return regions.view("S16")[..., 0]


def common_samples(first: Sample, second: Sample) -> tuple[Sample, Sample] | None:
    """Return what two runs scored alike: images, findings, equal labels, and pairs with equal regions.

    Clusters are patients if either run knows the patient of every common image. None without a common image or finding.
    """
    names = [(one.findings, one.clusters, one.image_ids) for one in (first, second)]
    ground = [(one.image_cluster, one.labels, one.pair_image, one.pair_column, one.region) for one in (first, second)]
    if names[0] == names[1] and all(map(np.array_equal, *ground)):
        return first, second
    if (shared := _shared(first, second)) is None:
        return None
    one, other = shared
    labels = np.where(one.labels == other.labels, one.labels, -1).astype(np.int8)
    both = (one.regions == other.regions) & (one.regions != b"")
    leader = one if one.clustered_by == "patients" else other
    clusters = {name: getattr(leader, name) for name in ("clustered_by", "clusters", "image_cluster")}
    one, other = (of.with_pairs(both[of.pair_image, of.pair_column]) for of in shared)
    return replace(one, labels=labels, **clusters), replace(other, labels=labels, **clusters)


def differences(first: Sample, second: Sample) -> dict[str, tuple[int, int]]:
    """Return by finding on how many common images the labels differ, and on how many others the regions do.

    A region also differs if only one run scored the pair. Findings that do not differ are left out.
    """
    if (shared := _shared(first, second)) is None:
        return {}
    one, other = shared
    labels = one.labels != other.labels
    # Runs without a scored pair, such as those of probabilities alone, have no regions.
    regions = ~labels & (one.regions != other.regions) & (len(one.pair_image) > 0) & (len(other.pair_image) > 0)
    counts = zip(one.findings, labels.sum(axis=0).tolist(), regions.sum(axis=0).tolist(), strict=True)
    return {finding: (of_labels, of_regions) for finding, of_labels, of_regions in counts if of_labels or of_regions}


def _shared(first: Sample, second: Sample) -> tuple[Sample, Sample] | None:
    image_ids = sorted({*first.image_ids} & {*second.image_ids})
    findings = tuple(finding for finding in first.findings if finding in second.findings)
    if not image_ids or not findings:
        return None
    one, other = (_restricted(sample, tuple(image_ids), findings) for sample in (first, second))
    return one, other


def _restricted(sample: Sample, image_ids: tuple[str, ...], findings: tuple[str, ...]) -> Sample:
    row_of = {image_id: row for row, image_id in enumerate(sample.image_ids)}
    rows = np.array([row_of[image_id] for image_id in image_ids])
    columns = np.array([sample.findings.index(finding) for finding in findings])
    new_row, new_column = np.full(len(sample.image_ids), -1), np.full(len(sample.findings), -1)
    new_row[rows], new_column[columns] = np.arange(len(rows)), np.arange(len(columns))
    kept, place = np.unique(sample.image_cluster[rows], return_inverse=True)
    sample = replace(sample, pair_image=new_row[sample.pair_image], pair_column=new_column[sample.pair_column])
    order = np.lexsort([sample.pair_column, sample.pair_image])
    return replace(
        sample.with_pairs(order[(sample.pair_image[order] >= 0) & (sample.pair_column[order] >= 0)]),
        findings=findings,
        clusters=tuple(sample.clusters[cluster] for cluster in kept),
        image_ids=image_ids,
        image_cluster=place.astype(np.int64),
        labels=sample.labels[np.ix_(rows, columns)],
        probabilities=sample.probabilities[np.ix_(rows, columns)],
    )
