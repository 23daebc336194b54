"""No code of a checkpoint is run, not even when whoever sits at the keyboard says yes to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from xbench.models.answers.local import Local
from xbench.models.answers.maira2 import Processor
from xbench.models.maps.biomedclip import BiomedCLIP
from xbench.models.maps.clip import CLIP
from xbench.models.maps.hf_dual import HFDual
from xbench.models.networks.bert import load_tokeniser, tokenise
from xbench.runtime.errors import UserError


@pytest.fixture
def hostile(bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as BiomedCLIP's whose configuration, network and tokeniser are code beside it."""
    folder = tmp_path / "hostile"
    shutil.copytree(bert_folder, folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    own = {
        "AutoConfig": "evil.A",
        "AutoModel": "evil.A",
        "AutoTokenizer": ["evil.A", "evil.A"],
        "AutoProcessor": "evil.A",
    }
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        content |= {"model_type": "evil", "tokenizer_class": "Evil", "processor_class": "Evil", "auto_map": own}
        (folder / name).write_text(json.dumps(content))
    config = json.loads((folder / "open_clip_config.json").read_text())
    text = {"hf_model_name": str(folder), "hf_tokenizer_name": str(folder)}
    config["model_cfg"]["text_cfg"] |= text | {"tokenizer_kwargs": {"trust_remote_code": True}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    return folder


def tokens_of(architecture: str) -> object:
    return CLIP._tokenizer.func(SimpleNamespace(architecture=architecture))


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: tokenise(load_tokeniser(str(folder)), ["edema"], 12, "CARZero"),
        lambda folder: BiomedCLIP(checkpoint=str(folder)),
        lambda folder: BiomedCLIP(checkpoint=str(folder), text_encoder=str(folder)),
        lambda folder: CLIP(f"local-dir:{folder}"),
        lambda folder: tokens_of(f"local-dir:{folder}"),
        lambda folder: HFDual(str(folder)),
        lambda folder: load_tokeniser(str(folder), "checkpoint"),
        lambda folder: Local("radvlm", str(folder)),
        lambda folder: Processor(folder, 1, 518, 1369),
    ],
)
def test_a_yes_at_the_keyboard_runs_nothing(hostile: Path, tmp_path: Path, load: Callable[[Path], object]):
    with pytest.raises(UserError):
        load(hostile)
    assert not (tmp_path / "ran").exists()


def test_tokenisers_of_open_clip_need_no_such_option(bert_folder: Path):
    assert all(tokens_of(name)(["edema"]).shape == (1, 77) for name in ("ViT-B-16-quickgelu", "RN50"))
    assert tokens_of(f"local-dir:{bert_folder}")(["edema"]).shape == (1, 12)
