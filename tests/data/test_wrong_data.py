from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from downloads import ANNOTATION_FILES, CLASSES, records_of, refusal
from official.base import Official

from xbench.commands.configs import shipped
from xbench.commands.look import declared, look
from xbench.data.annotations.folder import names_in
from xbench.data.datasets.downloaded import Source
from xbench.runtime.errors import UserError

EACH = pytest.mark.parametrize("name", CLASSES)
EACH_FILE = pytest.mark.parametrize("file", ANNOTATION_FILES, ids=str)
# A folder that holds images of the default split, below which there is nothing else that is needed.
FOLDERS = {
    "rsna": "stage_2_train_images",
    "siim": "dicom-images-train",
    "covid": "covid_rural_annot/jpgs",
    "chestxdet10": "test_data",
    "chexdet": "test_data",
    "chexlocalize": "CheXpert/test",
    "chestxray14": "images_001",
    "vindr": "test",
    "mscxr": "files",
    "padchestgr": "Padchest_GR_files",
    "tbx11k": "imgs",
}


def images_of(official: Official, split: str) -> list[str]:
    splits = official.splits
    return sorted(splits[split] if split in splits else splits["stage1_train"] + splits["stage1_test"])


@EACH
def test_the_root_is_a_parent_or_a_child(downloads, name):
    root = downloads(name).root
    data = CLASSES[name](str(root.parent))
    assert list(records_of(data)) == images_of(downloads(name), data.split)
    if name == "covid":
        assert len(records_of(CLASSES[name](str(root / FOLDERS[name])))) == 10, "it holds all that is needed"
    else:
        message = refusal(name, root / FOLDERS[name])
        assert message.startswith(f"{name}: no ")
        hints = ("did you mean --data.root", "set --data.root to the folder that holds both")
        # Its annotations lie two folders deep.
        assert name == "tbx11k" or any(hint in message for hint in hints)


@EACH_FILE
def test_a_missing_file(downloads, tmp_path, file):
    path = downloads.copy_with(file, tmp_path / "copy", images=True)
    path.unlink()
    if file.required:
        refusal(file.dataset, tmp_path / "copy", split=file.split, says=[path.name, f"lies under {tmp_path / 'copy'}"])
    else:
        assert records_of(file.open(tmp_path / "copy"))


@EACH
def test_the_first_look_finds_the_annotation_files_that_the_loader_reads(downloads, tmp_path, name):
    """Neither has a list of its own: without any one of them both refuse, and with all of them neither does."""

    def refused(root: Path, split: str) -> tuple[str, str]:
        words = ["--config", f"oracle_{name}", "--data.root", str(root), "--data.split", split]
        told = []
        for read in (lambda: look("test", words), lambda: CLASSES[name](str(root), split=split).read_records(True)):
            try:
                read()
                told.append("")
            except UserError as error:
                told.append(str(error))
        return told[0], told[1]

    config = yaml.safe_load(shipped("data")[name].read_text())
    assert declared(config["class_path"], "files") == CLASSES[name].files
    seen = 0
    for split in CLASSES[name].splits:
        first, loader = refused(downloads(name).root, split)
        assert bool(first) == ("lies under" in loader), (first, loader)
        if first:
            continue
        for number, (option, names) in enumerate(CLASSES[name].files.items()):
            if wanted := names_in(split, names):
                root = downloads.copy(name, tmp_path / f"{split}-{number}").root
                for path in [path for one in wanted for path in root.rglob(one)]:
                    path.unlink()
                    seen += 1
                first, loader = refused(root, split)
                assert "lies under" in loader and all(one in first for one in wanted), (first, loader)
                assert (f"(or --data.{option})" in first) == (option == "annotations")
                look("predict", ["--config", f"oracle_{name}", "--data.root", str(root)])
    assert seen


SPOILT = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "not UTF-8": "id,name,größe\n".encode("latin-1") * 3,
    "a page of HTML": b"<!DOCTYPE html>\n<html><body>Sign in to download</body></html>\n",
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 5678\n",
    "deep": b"[" * 50_000,
    "another JSON": b'{"a": [1, 2, {"b": null}]}',
}


@EACH_FILE
@pytest.mark.parametrize("content", SPOILT)
def test_a_file_of_something_else(downloads, tmp_path, file, content):
    path = downloads.copy_with(file, tmp_path / "copy")
    path.write_bytes(SPOILT[content])
    assert str(path) in refusal(file.dataset, tmp_path / "copy", split=file.split)


@EACH_FILE
def test_a_truncated_file(downloads, tmp_path, file):
    path = downloads.copy_with(file, tmp_path / "copy")
    data = file.open(tmp_path / "copy")
    content, whole = path.read_bytes(), len(data.read_records(annotated=True))
    for share in (0.1, 0.35, 0.6, 0.99):
        path.write_bytes(content[: int(len(content) * share)])
        if path.suffix == ".json":
            assert "cannot be read" in refusal(file.dataset, tmp_path / "copy", split=file.split)
            continue
        # A table that ends within a row is refused, unless only the end of its last value is missing, which is noted.
        data.notes = []
        try:
            assert len(data.read_records(annotated=True)) <= whole
        except UserError as error:
            assert str(path) in str(error)
        else:
            noted = any("may have been cut off" in note.text for note in data.notes)
            assert noted or path.suffix == ".txt" or path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("name", ["chestxdet10", "chexlocalize", "vindr"])
def test_a_table_of_another_split(downloads, tmp_path, name):
    official = downloads.copy(name, tmp_path / "copy")
    test, other = CLASSES[name].splits
    tables = {path.name: path for path in official.root.rglob("*") if path.suffix in (".csv", ".json")}
    for table, path in tables.items():
        if test in table:
            path.unlink()
    message = refusal(name, official.root)
    assert f", of the split {other}: --data.split {other} takes it." in message
    assert any(f"There is {path}" in message for path in tables.values())


@EACH
@pytest.mark.parametrize("up", ["../", "../../", "/etc/", "..\\"])
def test_names_that_lead_out_of_the_root(downloads, tmp_path, name, up):
    """An image beside the root that an annotation file points to is not read."""
    root = tmp_path / "root"
    official = downloads.copy(name, root)
    image = min(records_of(CLASSES[name](str(root))))
    path = official.files[image]
    path.rename(tmp_path / path.name)
    stem = Path(image).name if name != "chexlocalize" else "test/" + "/".join(image.split("_", 2))
    for file in ANNOTATION_FILES:
        if file.dataset == name and stem in (text := (root / file.path).read_text()):
            outside = json.dumps(f"{up}{stem}")[1:-1] if file.path.endswith(".json") else f"{up}{stem}"
            (root / file.path).write_text(text.replace(stem, outside))
    data = CLASSES[name](str(root), on_error="skip")
    try:
        records = records_of(data)
    except UserError as error:
        assert "\n" not in str(error)
        return
    for record in records.values():
        source: Source = record.source
        assert source.path is None or source.path.is_relative_to(root)
    assert sum(record.missing for record in records.values()) >= 1
