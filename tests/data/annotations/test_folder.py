from __future__ import annotations

from pathlib import Path

import pytest

from xbench.data.annotations.folder import Folder
from xbench.runtime.errors import UserError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def folder_of(root, **options):
    return Folder(root, lambda path: path.stem, **options)


def names(folder):
    return {image: [str(path.relative_to(folder.root)) for path in paths] for image, paths in folder.images.items()}


def test_images_tables_and_archives(tmp_path):
    touch(tmp_path, "a.dcm", "x/b.PNG", "x/y/c.Jpeg", "x/y/d.dicom", "e.jpg", "f.gif", "g", "table.CSV", "x/s.json")
    touch(tmp_path, "x/list.txt", "i.zip", "x/j.tar.gz", "k.TGZ", "notes.md")
    folder = folder_of(tmp_path)
    found = {"a": "a.dcm", "b": "x/b.PNG", "c": "x/y/c.Jpeg", "d": "x/y/d.dicom", "e": "e.jpg"}
    assert names(folder) == {image: [path] for image, path in found.items()}
    assert {path.name for path in folder.archives} == {"i.zip", "j.tar.gz", "k.TGZ"}
    assert [path.name for path in folder.find("table.csv", "none.csv")] == ["table.CSV"]
    assert [path.name for path in folder.ending(".json")] == ["s.json"]
    assert folder.choose("toy", ["TABLE.csv"], "here").name == "table.CSV"


def test_hidden_files_and_folders_are_left_aside_but_not_a_hidden_root(tmp_path):
    root = touch(tmp_path / ".data", ".a.png", "._table.csv", ".cache/b.png", ".git/table.csv", "_/._c.png", "d.png")
    folder = folder_of(root)
    assert list(folder.images) == ["d"]
    assert folder.find("table.csv") == []


def test_links_are_followed(tmp_path):
    touch(tmp_path / "disk", "a.png", "deep/b.png")
    touch(tmp_path / "root", "c.png")
    (tmp_path / "root" / "images").symlink_to(tmp_path / "disk")
    (tmp_path / "root" / "d.png").symlink_to(tmp_path / "disk" / "a.png")
    found = {"a": "images/a.png", "b": "images/deep/b.png", "c": "c.png", "d": "d.png"}
    assert names(folder_of(tmp_path / "root")) == {image: [path] for image, path in found.items()}
    (tmp_path / "link").symlink_to(tmp_path / "root")
    assert {*folder_of(tmp_path / "link").images} == {"a", "b", "c", "d"}


def test_a_folder_is_found_where_it_lies_and_not_by_a_link(tmp_path):
    touch(tmp_path, "test/a.png", "b/c/e.png")
    (tmp_path / "current").symlink_to(tmp_path / "test")
    folder = folder_of(tmp_path)
    assert names(folder)["a"] == ["test/a.png"]
    assert list(folder.in_folder("test")) == ["a"]


def test_in_folder(tmp_path, monkeypatch):
    touch(tmp_path, "test/a.png", "test/deep/b.png", "other/test/c.png", "other/d.png", "testing/e.png", "other/a.png")
    folder = folder_of(tmp_path)
    assert {*folder.in_folder("test")} == {"a", "b", "c"}
    assert [str(path.relative_to(tmp_path)) for path in folder.in_folder("test")["a"]] == ["test/a.png"]
    assert {*folder.in_folder("test", "testing")} == {"a", "b", "c", "e"}
    assert folder.in_folder() == folder.in_folder("none") == {}
    assert {*folder_of(tmp_path / "test").in_folder("test")} == {"a", "b"}
    assert folder_of(tmp_path / "test" / "deep").in_folder("test") == {}
    monkeypatch.chdir(tmp_path / "test")
    assert {*folder_of(Path(".")).in_folder("test")} == {"a", "b"}


def refusal(root, *tables, **options):
    with pytest.raises(UserError) as caught:
        folder_of(root).choose("toy", tables or ("t.csv",), "images and t.csv", **options)
    message = str(caught.value)
    assert message.startswith("toy: ")
    assert "\n" not in message
    return message


def test_several_tables(tmp_path):
    touch(tmp_path, "x/t.csv", "y/t.csv")
    assert folder_of(tmp_path).choose("toy", ["t.csv"], "").parent.name == "x", "they are equal"
    (tmp_path / "x" / "t.csv").write_text("id\na\n")
    assert "choose one with --data.annotations" in refusal(tmp_path, option="annotations")
    message = refusal(tmp_path)
    assert "set --data.root to a folder that holds one" in message
    assert str(tmp_path / "x" / "t.csv") in message


def test_hints(tmp_path):
    place = tmp_path / "one" / "two" / "three"
    touch(place / "images", "a.png")
    message = refusal(place / "images", "t.csv", "u.csv", option="annotations")
    assert "no t.csv or u.csv lies under" in message
    assert "There is" not in message
    assert "Expected in --data.root: images and t.csv." in message
    assert "Name a file elsewhere with --data.annotations." in message
    touch(place, "t.csv")
    assert f"There is {place / 't.csv'}: did you mean --data.root {place}?" in refusal(place / "images")
    (place / "t.csv").unlink()
    touch(place, "tables/t.csv")
    assert f"There is {place / 'tables' / 't.csv'}: set --data.root to the folder" in refusal(place / "images")
