from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_llavarad
import torch
from run_files import disagreements
from tiny_llavarad import PATCH, SIDE, WIDTH, WORDS, by_hand

from xbench.cli import main
from xbench.models.maps.llavarad import LLaVARad
from xbench.runs.finished import FinishedRun
from xbench.runtime.errors import UserError
from xbench.runtime.notes import EXPLORATORY_NOTE

GRID = SIDE // PATCH


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny_llavarad.build(tmp_path_factory.mktemp("llavarad"))


@pytest.fixture
def own(folders: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    return Path(shutil.copytree(folders[0], tmp_path / "own")), Path(shutil.copytree(folders[1], tmp_path / "vicuna"))


def model(folders: tuple[Path, Path], **options: Any) -> LLaVARad:
    return LLaVARad(str(folders[0]), str(folders[1]), **({"dtype": "float32"} | options))


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def letters(text: str) -> list[int]:
    """Token ids of a text by the slow and obvious form: the likeliest pair that is a piece is joined first."""
    pieces = ["▁", *(one if one in WORDS else f"<0x{ord(one):02X}>" for one in text.replace(" ", "▁"))]
    while True:
        joined = [(WORDS.index(a + b), at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in WORDS]
        if not joined:
            return [WORDS.index(piece) for piece in pieces]
        _, at = min(joined)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def test_tokens_of_the_prompt(folders: tuple[Path, Path]) -> None:
    network = model(folders)
    ((tokens, named),) = network.encode_prompts([["the heart"]])
    behind = "\nProvide a description of the findings in the radiology image. ASSISTANT: There is the heart."
    assert tokens.tolist() == letters(behind)
    spoken = [WORDS[token] for token, yes in zip(tokens.tolist(), named.tolist(), strict=True) if yes]
    assert "".join(spoken) == "▁the▁heart"
    assert network._before[0] == WORDS.index("<s>") and network._before[1:] == letters(
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions. USER: "
    )


@pytest.mark.parametrize(("layers", "heads"), [("all", None), ([1], [0]), ("last", [1])])
def test_attention_is_that_of_the_whole_network(folders: tuple[Path, Path], layers: Any, heads: Any) -> None:
    network = model(folders, layers=layers, heads=heads)
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    queries = network.encode_prompts([["edema"], ["the heart"]])
    output = network(images, queries)
    assert output.logits.isnan().all() and output.probabilities.isnan().all()
    first = len(network._before)
    for row, image in enumerate(images):
        for column, (tokens, named) in enumerate(queries):
            attention = by_hand(network._before, image[None], tokens.tolist()).attentions
            rows = first + GRID**2 + named.nonzero()[:, 0]
            some = torch.stack([attention[at][0] for at in ([0, 1] if layers == "all" else [1])])
            some = some if heads is None else some[:, heads]
            expected = some[:, :, rows, first : first + GRID**2].mean((0, 1, 2)).view(GRID, GRID)
            torch.testing.assert_close(output.saliency[row, column], expected, rtol=1e-4, atol=1e-7)
    alone = network(images[1:], queries[1:])
    assert torch.equal(alone.saliency[0, 0], output.saliency[1, 1])


def test_report_is_the_likeliest_token_each_time(folders: tuple[Path, Path]) -> None:
    network = model(folders, report_tokens=6)
    image = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    asked = letters("\nProvide a description of the findings in the radiology image. ASSISTANT:")
    said: list[int] = []
    while len(said) < 6 and said[-1:] != [WORDS.index("</s>")]:
        said.append(int(by_hand(network._before, image[None], asked + said).logits[0, -1].argmax()))
    ended = said[-1] == WORDS.index("</s>")
    expected = network.tokenizer.decode(said[:-1] if ended else said).strip()
    reply = network.report(image)
    assert expected and (reply.text, reply.finish) == (expected, "stop" if ended else "length")


@pytest.mark.parametrize("size", [(300, 200), (151, 420), (140, 140)])
@pytest.mark.parametrize("cell", [(0, 0), (1, 3), (4, 2)])
def test_peak_lies_on_the_patch_that_is_attended(folders, size: tuple[int, int], cell: tuple[int, int]) -> None:
    """A network that attends to the bright square, wherever the radiograph shows it."""
    network = model(folders, layers=[0])
    points_at_brightness(network)
    # The square in the middle of the radiograph has GRID x GRID cells.
    height, width = size
    square = min(size)
    top, left = (height - square) / 2, (width - square) / 2
    radiograph = np.full(size, 30, np.uint8)
    edges = [
        round(start + square * (at + share) / GRID)
        for start, at in zip((top, left), cell, strict=True)
        for share in (0.2, 0.8)
    ]
    radiograph[edges[0] : edges[1], edges[2] : edges[3]] = 250
    image, view = network.preprocessing(radiograph)
    saliency = network(image[None], network.encode_prompts([["edema"]])).saliency[0, 0]
    row, column = divmod(int(saliency.argmax()), GRID)
    x = (view[0] + (view[2] - view[0]) * (column + 0.5) / GRID) * width
    y = (view[1] + (view[3] - view[1]) * (row + 0.5) / GRID) * height
    assert edges[0] <= y <= edges[1] and edges[2] <= x <= edges[3]


def points_at_brightness(network: LLaVARad) -> None:
    """Set weights so that each token attends to what is bright: patches tell their mean, and keys read it."""
    net = network.network
    for one in (*net.visual.trunk.parameters(), *net.model.mm_projector.parameters()):
        one.data.zero_()
    net.visual.trunk.patch_embed.proj.weight.data[0] = 1 / (3 * PATCH**2)
    net.model.mm_projector[0].weight.data[0, 0] = 1
    net.model.mm_projector[0].bias.data[0] = 5  # so that GELU leaves it as it is
    net.model.mm_projector[2].weight.data[0, 0] = 1
    net.model.mm_projector[2].bias.data[1] = 5
    layer = net.model.layers[0]
    layer.input_layernorm.weight.data.fill_(1)
    net.model.embed_tokens.weight.data.zero_()
    net.model.embed_tokens.weight.data[:, 2] = 1
    for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
        linear.weight.data.zero_()
    # The slowest turning pair of each head, so that the place in the text counts for nearly nothing.
    for head in (0, WIDTH // 2):
        slow = head + WIDTH // 4 - 1
        layer.self_attn.q_proj.weight.data[slow, 2] = 20
        layer.self_attn.k_proj.weight.data[slow, 0] = 20


@pytest.mark.parametrize("how", ["not finite", "the same on every patch"])
def test_failure_is_an_error(folders: tuple[Path, Path], how: str) -> None:
    network = model(folders)
    for layer in network.network.model.layers:
        layer.self_attn.q_proj.weight.data.fill_(float("nan") if how == "not finite" else 0)
    images, network.queries = torch.randn(1, 3, SIDE, SIDE), network.encode_prompts([["edema"]])
    with pytest.raises(UserError, match=f"image film-7, finding .*{how}"):
        network.score(SimpleNamespace(images=images, truth=SimpleNamespace(image_ids=["film-7"])))  # type: ignore[arg-type]


@pytest.mark.usefixtures("unsaved_figures")
def test_a_run(folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path
    given = [f"--model.checkpoint={folders[0]}", f"--model.base={folders[1]}", "--model.dtype=float32"]
    given += ["--model.reports=true", "--model.report_tokens=4"]
    settings = {"images": 3, "size": 64, "num_workers": 0, "cache": "false", "batch_size": 2}
    given += [f"--data.{name}={value}" for name, value in settings.items()]
    given += [f"--trainer.default_root_dir={tmp_path}", "--trainer.logger=false", "--trainer.accelerator=cpu"]
    assert main(["test", "--config", "llavarad_phantom", *given]) == 0
    (path,) = folder.glob("*/*/results.json")
    results = json.loads(path.read_text())
    assert disagreements(path.parent) == []
    assert results["grounding"]["macro"]["pointing_game"] is not None
    assert all(value is None for value in results["classification"]["macro"].values())
    reply, *others = FinishedRun.open(path.parent).texts
    assert len(others) + 1 == results["counts"]["images"] and reply.finish in ("stop", "length")
    assert main(["rescore", str(path.parent), "--protocol", "words", "--words-of-maps", "--workers", "0"]) == 0
    numbers = json.loads((path.parent / "protocols" / "words.json").read_text())["numbers"]
    assert {"map_side_joint", "words_maps_agree"} <= {*numbers} and main(["verify", "--deep", str(path.parent)]) == 0
    details = results["provenance"]["model"]
    assert details["exploratory"] == LLaVARad.exploratory and details["map_scale"] == "attention"
    (note,) = [one for one in results["counts"]["notes"] if one["note"].startswith(EXPLORATORY_NOTE)]
    assert LLaVARad.exploratory in note["note"]
    assert EXPLORATORY_NOTE in " ".join("".join(capsys.readouterr()).split())
    assert main(["report", str(path.parent), "--out", str(folder / "pages")]) == 0
    pages = [folder / "pages" / name for name in ("report.md", "index.html")]
    assert all(LLaVARad.exploratory in " ".join(page.read_text().split()) for page in pages)


MISFITS = {
    "config.json": ({"mm_vision_select_feature": "cls_patch"}, "mm_vision_select_feature"),
    "adapter_config.json": ({"use_rslora": True}, "use_rslora"),
    "biomedclipcxr_518.json": ({"vision_cfg": {"timm_model_name": "resnet50", "image_size": 70}}, "resnet50"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_other_settings(own: tuple[Path, Path], name: str) -> None:
    settings, said = MISFITS[name]
    change(own[0] / name, **settings)
    with pytest.raises(UserError, match=f"no {name} of LLaVA-Rad.*{said}"):
        model(own)


def test_a_tensor_too_few_or_too_many(own: tuple[Path, Path]) -> None:
    path = own[0] / "non_lora_trainables.bin"
    tensors = torch.load(path)
    torch.save(tensors | {"base_model.model.model.other": torch.ones(1)}, path)
    with pytest.raises(UserError, match=r"1 unexpected \(model.other\)"):
        model(own)
    torch.save({name: one for name, one in tensors.items() if "0.bias" not in name}, path)
    with pytest.raises(UserError, match=r"1 missing \(model.mm_projector.0.bias\)"):
        model(own)


def test_an_adapter_of_another_network(own: tuple[Path, Path]) -> None:
    path = own[0] / "adapter_model.bin"
    tensors = torch.load(path)
    name = next(name for name in tensors if name.endswith("q_proj.lora_B.weight"))
    for other in ({**tensors, name: torch.ones(5, 2)}, {key: one for key, one in tensors.items() if key != name}):
        torch.save(other, path)
        with pytest.raises(UserError, match=r"does not fit .*q_proj"):
            model(own)


def test_what_is_missing(folders: tuple[Path, Path], own: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"--model.base .*lmsys/vicuna-7b-v1.5"):
        LLaVARad(str(own[0]))
    (own[1] / "tokenizer.model").write_bytes(b"\x0a\x90")
    with pytest.raises(UserError, match=r"tokenizer .* cannot be read"):
        model(own)
    (own[0] / "adapter_model.bin").unlink()
    shutil.copy(folders[1] / "tokenizer.model", own[1])
    with pytest.raises(UserError, match=r"lacks adapter_model\.bin"):
        model(own)
