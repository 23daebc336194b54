from __future__ import annotations

import zipfile

import pytest
import torch

from xbench.data.annotations.tables import read_csv, read_image_list, read_json
from xbench.models.networks.checkpoint import read_tensors
from xbench.runtime.errors import UserError


def test_a_checkpoint_that_unpacks_to_many_times_its_size(tmp_path):
    torch.save({"weight": torch.zeros(500_000)}, tmp_path / "sound.pth")
    assert read_tensors(tmp_path / "sound.pth")["weight"].shape == (500_000,)
    with (
        zipfile.ZipFile(tmp_path / "sound.pth") as sound,
        zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in sound.namelist():
            bomb.writestr(name, sound.read(name))
    assert (tmp_path / "bomb.pth").stat().st_size < 20_000
    with pytest.raises(UserError, match="would unpack to 2,0"):
        read_tensors(tmp_path / "bomb.pth")


def test_a_table_without_end(tmp_path):
    (tmp_path / "long.csv").write_text("a\n" + "1\n" * 1_000_000)
    with pytest.raises(UserError, match="1,000,001 lines"):
        next(read_csv("own", tmp_path / "long.csv", ["a"]))
    with pytest.raises(UserError, match="1,000,001 lines"):
        read_image_list("own", tmp_path / "long.csv")


@pytest.mark.parametrize("part", ["[]", "{}", "[" * 50 + "]" * 50, '{"a":1}'])
def test_a_json_file_of_nothing_but_brackets(tmp_path, part):
    count = sum(map(part.count, "[{:"))
    (tmp_path / "wide.json").write_text(f"[{','.join([part] * (3_000_000 // count))}]")
    with pytest.raises(UserError, match=r"3,000,00\d lists and entries"):
        read_json("own", tmp_path / "wide.json")


def test_a_json_file_of_long_outlines_is_read(tmp_path):
    (tmp_path / "outline.json").write_text(f'{{"image": [{",".join(["[1023,511]"] * 1_000_000)}]}}')
    assert len(read_json("own", tmp_path / "outline.json")["image"]) == 1_000_000
