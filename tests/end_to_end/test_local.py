from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import tiny_chexagent2
import tiny_maira2
import tiny_multimodal
from run_files import disagreements
from tiny_multimodal import FAMILY_OF

from xbench.cli import main

CASES = [*FAMILY_OF.items(), ("florence2", "agkd"), ("chexagent2", "chexagent2"), ("maira2", "maira2")]
NATIVE = {"chexagent2": tiny_chexagent2, "maira2": tiny_maira2}


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_a_run(kind, family, tmp_path_factory, tmp_path, downloads, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path_factory.getbasetemp() / f"tiny-{kind}"
    if not folder.is_dir():
        NATIVE[kind].build(folder) if kind in NATIVE else tiny_multimodal.build(kind, folder)
    recognise = family in ("chexagent2", "radvlm", "qwen25vl", "qwen3vl", "internvl")
    model = {"checkpoint": folder, "max_tokens": 6, "ask_negatives": "true"}
    model |= {} if family == "maira2" else {"recognise": str(recognise).lower()}
    own = {"root": downloads("vindr").root, "limit": 2}
    given = [f"--model.{name}={value}" for name, value in model.items()]
    given += [f"--data.{name}={value}" for name, value in (own | {"num_workers": 0, "cache": "false"}).items()]
    given += [f"--trainer.default_root_dir={tmp_path}", "--trainer.logger=false", "--trainer.accelerator=cpu"]
    assert main(["test", "--config", f"{family}_vindr", *given]) == 0
    (path,) = tmp_path.glob("*/*/results.json")
    results = json.loads(path.read_text())
    assert disagreements(path.parent) == []
    rows = pq.read_table(path.parent / "predictions.parquet").to_pylist()
    assert {row["asked"] for row in rows} == {"locate", *(["recognise"] if recognise else [])}
    assert all(row["finish"] in ("stop", "length") and row["tokens_out"] for row in rows)
    if recognise:
        masses = [row["mass"] for row in rows if row["asked"] == "recognise"]
        assert masses and all(0 < mass < 1 for mass in masses)
    shown = {row["frame"] for row in rows if row["asked"] == "locate"}
    if family == "qwen25vl":
        assert all(frame.startswith("pixels_resized@") for frame in shown)
    else:
        assert shown == {None}
    provenance, details = results["provenance"], results["provenance"]["model"]
    assert results["model"] == details["family"] == family
    assert len(provenance["checkpoint_sha256"]) == 64 and details["generation"]["do_sample"] is False
