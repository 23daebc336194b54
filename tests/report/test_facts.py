"""What the sentences of a report are made from."""

from __future__ import annotations

import pytest

from xbench.report.facts import over_datasets
from xbench.report.schema import Estimate


def test_means_over_datasets_recover_the_intervals():
    one = Estimate(0.5, 0.4, 0.6)
    assert over_datasets([one]) is one
    both = over_datasets([one, Estimate(0.7, 0.6, 0.8)])
    assert both.value == pytest.approx(0.6)
    assert both.high - both.value == pytest.approx((0.1**2 + 0.1**2) ** 0.5 / 2)
    assert over_datasets([one, Estimate(0.7)]) == Estimate(pytest.approx(0.6))
    assert over_datasets([one, Estimate(None)]) == Estimate(None)
