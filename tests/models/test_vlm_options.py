from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xbench.findings.prompts import wording
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import VLM
from xbench.runtime.errors import UserError
from xbench.types import ModelOutput, Query


class Tiny(VLM):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.preprocessing = Preprocessing(stretch((8, 8)), mean=(0, 0, 0), std=(1, 1, 1))
        torch.manual_seed(0)
        self.tower = torch.nn.Conv2d(3, 4, 2, 2).requires_grad_(False)

    def default_prompts(self, finding: str) -> list[str]:
        return [f"official {finding}"]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        rows = [[zlib.crc32(f"{k}{text}".encode()) / 2**32 for k in range(4)] for (text, *_) in prompts]
        return torch.tensor(rows)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        saliency = torch.einsum("bdhw,cd->bchw", self.tower(images), queries)
        logits = saliency.mean((2, 3))
        return ModelOutput(logits, logits.sigmoid(), saliency)


def started(findings: tuple[str, ...] = ("Nodule", "Pleural Effusion"), **options: Any) -> Tiny:
    model = Tiny(**options)
    # As the trainer does before a run.
    model._trainer = SimpleNamespace(datamodule=SimpleNamespace(findings=findings))  # type: ignore[assignment]
    model.setup("test")
    model.on_test_start()
    return model


def test_the_official_words_and_a_style_of_the_package():
    assert started().prompts == [["official Nodule"], ["official Pleural Effusion"]]
    model = started(prompts="description")
    assert model.prompts == [[wording(finding).description] for finding in model.findings]
    assert model.provenance()["prompt_source"] == "description"
    assert [len(texts) for texts in started(prompts="aspects").prompts] == [8] * 2


def test_a_file_of_prompts_by_any_spelling(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"effusion": "fluid", "nodule": ["a spot", "a coin"], "Nobody's finding": "?"}))
    assert started(prompts=str(path)).prompts == [["a spot", "a coin"], ["fluid"]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("Nodule: a spot\n", "no prompt for Pleural Effusion"),
        ("Effusion: fluid\nPleural effusion: more fluid\n", "twice"),
    ],
)
def test_files_of_prompts_that_are_no_good(tmp_path, content, says):
    path = tmp_path / "prompts.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        started(prompts=str(path))


def test_phrases_are_encoded_in_full_precision_as_findings_are(monkeypatch):
    model, half = started(), []

    def encode(prompts):
        half.append(torch.is_autocast_enabled("cpu"))
        return torch.ones(len(prompts), 4)

    monkeypatch.setattr(model, "encode_prompts", encode)
    truth = SimpleNamespace(queries=[Query("1", None, "a spot")], image=np.array([0]), image_ids=["a"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.predict(SimpleNamespace(images=torch.randn(1, 3, 8, 8), truth=truth, notes=[]))
    assert half == [False]


@pytest.mark.parametrize("option", ["channels_last", "compile"])
def test_layout_and_compilation_change_nothing_else(option):
    batch = SimpleNamespace(images=torch.randn(2, 3, 8, 8))
    plain, turned = started(), started(**{option: True})
    torch.testing.assert_close(turned.score(batch).logits, plain.score(batch).logits)  # type: ignore[arg-type]
    torch.testing.assert_close(turned.score(batch).saliency, plain.score(batch).saliency)  # type: ignore[arg-type]
    assert turned.tower.weight.is_contiguous(memory_format=torch.channels_last) == (option == "channels_last")
