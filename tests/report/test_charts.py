from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from xbench.report import charts


def test_outcomes_are_those_counted_from_the_maps_and_regions_pixel_by_pixel(three_analyzed):
    for entry in three_analyzed.datasets[0].runs:
        run, pairs, shares = entry.run, entry.run.cases(), []
        for finding, quadrants in entry.quadrants.items():
            counts = Counter()
            for image_id in (image for image, of in pairs if of == finding):
                pair = pairs.read(image_id, finding)
                # Synthetic runs are scored on maps whose cells are repeated.
                map_ = np.kron(pair.saliency, np.ones((4, 4)))
                peaks, region = np.argwhere(map_ == map_.max()), np.argwhere(pair.region)
                hit = Fraction(sum(bool(pair.region[y, x]) for y, x in peaks), len(peaks))
                height, width = map_.shape
                # In film widths and heights, squared, and compared without a root: 5 % of them.
                near = 400 * (((peaks[:, None] - region) * [width, height]) ** 2).sum(-1).min() <= (width * height) ** 2
                row, column = run.images.image_ids.index(image_id), run.results.findings.index(finding)
                recognized = run.images.probabilities[row, column] >= quadrants.threshold
                counts["hit"] += hit
                counts["missed" if not recognized else "near" if near else "elsewhere"] += 1 - hit
            shares.append([float(counts[key] / sum(counts.values())) for key in ("hit", "near", "elsewhere", "missed")])
        found = charts.outcomes(three_analyzed.datasets, run.label)
        assert [found.hit, found.near, found.elsewhere, found.missed] == pytest.approx(np.mean(shares, axis=0))
    assert found.near > 0, "one of the runs at least comes close"
