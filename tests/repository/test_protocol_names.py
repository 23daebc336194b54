from __future__ import annotations

import ast

import pytest
from places import ROOT

from xbench.scoring.protocols import PROTOCOLS

# Also the name of the package, of a dataset, of models, of a kind of predictions, and of sections of the report's page.
SHARED = {"xbench", "chexlocalize", "biovil", "radzero", "calibration", "lesions", "detections", "words"}


@pytest.mark.parametrize("room", ["xbench/commands", "xbench/runs", "xbench/report", "callbacks"])
def test_no_protocol_is_known_by_its_name(room):
    for path in (ROOT / room).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & ({*PROTOCOLS} - SHARED), path


def test_each_protocol_has_a_file_and_says_what_is_wrong_with_it():
    files = {path.stem for path in (ROOT / "xbench" / "scoring" / "protocols").glob("*.py")}
    assert files == {*PROTOCOLS, "__init__", "base", "common"}
    for protocol in PROTOCOLS.values():
        assert protocol.flaw.endswith(".") and protocol.citation and protocol.rule and protocol.setting
        assert protocol.takes <= {"map", "boxes", "points", "words", "score"}
