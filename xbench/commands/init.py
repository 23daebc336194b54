"""Command `init`: guess the YAML of a folder with images and annotations."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from xbench.commands.configs import shipped
from xbench.commands.look import needs_of
from xbench.data.annotations.folder import Folder
from xbench.data.annotations.tables import read_csv, read_json
from xbench.findings.names import FINDINGS, canonical, is_folder_name
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import writing
from xbench.runtime.strict import load_yaml

_NAMES = load_yaml(Path(__file__).with_name("init.yaml"))
Found = tuple[str, dict[str, Any], str]  # kind of dataset, options, and advice to the user


def init(given: Namespace) -> None:
    """Write the configuration of a folder of data."""
    root, target = given.dir.expanduser().absolute(), (given.out or Path("mine.yaml")).expanduser()
    if not root.is_dir() or target.exists():
        wrong = f"{target} exists: name another file with --out" if root.is_dir() else f"{root} is not a folder"
        raise UsageError(f"init: {wrong}.")
    folder = Folder(root, lambda path: path.relative_to(root).with_suffix("").as_posix())
    found = _coco(folder) or _csv(folder) or _masks(folder) if folder.images else None
    if found is None:
        raise UserError(
            f"init: {root} has no {'annotations that init knows' if folder.images else 'PNG, JPEG or DICOM files'}: it "
            "looks for images with COCO's JSON, a CSV file of boxes, or a folder called masks. See docs/own-data.md."
        )
    kind, options, doubt = found
    name = root.name if is_folder_name(root.name) and root.name not in FINDINGS else f"my_{root.name}"
    data = {"data": {"name": name, "root": str(root), **options}}
    content = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    guess = f"# Written by xbench init from guesses: check every line. See {needs_of(shipped('data')[kind])[1]}\n"
    guess += "# Check name and root first: reports call the dataset by its name and an image by its path below root.\n"
    with writing(f"{target} cannot be written", "Name another file with --out."):
        target.write_text(guess + content, encoding="utf-8")
    counts = f"image files: {len(folder.images):,}, findings: {len(options['findings'])}"
    print(f"Wrote {target}. Format: {kind}, {counts}. {doubt}".rstrip())
    if unknown := [name for name in options["findings"].values() if canonical(name) is None]:
        print(f"No prompts for {', '.join(unknown)}: right of the colons, use names from `xbench list findings`.")
    print(f"Check its keys name and root, then run: xbench check --config clip_{kind} --config {target}")
    print(f"For a model of your own, put its YAML file in place of clip_{kind}.")


def _coco(folder: Folder) -> Found | None:
    for path in folder.ending(".json"):
        with suppress(AttributeError, KeyError, TypeError, IndexError):
            content = read_json("init", path)
            items, used = content["annotations"], {one["category_id"] for one in content["annotations"]}
            labels = [str(one["name"]).strip() for one in content["categories"] if one["id"] in used]
            text = _role("text", items[0])
            found = {"annotations": str(path), "findings": _named(labels)} | ({"text": text} if text else {})
            return "coco", found, f"{len(labels)} of {len(content['categories'])} categories have annotations."
    return None


def _csv(folder: Folder) -> Found | None:
    tables = {path: rows for path in folder.ending(".csv") if (rows := _rows(path)) and _role("image", rows[0])}
    flagged = {path: flags for path, rows in tables.items() if (flags := [*filter(_is_flag(rows), rows[0])])}
    sides = {spelled: usual for usual in ("xywh", "xyxy") for spelled in _NAMES[usual]}
    for path, rows in tables.items():
        columns = {name.lower(): name for name in rows[0]}
        spelled = next((one for one in sides if {*one.split()} <= {*columns}), "")
        finding, text = _role("finding", rows[0]), _role("text", rows[0])
        if not spelled or not (finding or text):
            continue
        usual = _NAMES[box := sides[spelled]][0].split()
        named = {known: columns[one] for known, one in zip(usual, spelled.split(), strict=True)}
        labels = next((one for one in (tables if text else flagged) if one != path), folder.root / "labels.csv")
        boxed = dict.fromkeys(label for row in rows if (label := row.get(finding)))
        findings = _named([*flagged.get(labels, ()), *boxed])
        options: dict[str, Any] = {"annotations": str(path), "labels": str(labels), "findings": findings, "box": box}
        undrawn = {*findings.values()} - {findings[label] for label in boxed}
        options |= {"text": text} if text else {"recognition_only": sorted(undrawn)} if undrawn else {}
        named |= {"image": _role("image", rows[0])} | ({"finding": finding} if finding else {})
        changed = {known: name for known, name in named.items() if known != name}
        options |= {"columns": changed} if changed else {}
        with suppress(ValueError):
            if max(float(row[named[side]] or 0) for row in rows for side in usual) <= 1:
                options["units"] = "fractions"
        return "csv", options, "" if labels in tables else f"Missing: {labels}, a row per image, a column per finding."
    return None


def _masks(folder: Folder) -> Found | None:
    places = {above for paths in folder.images.values() for above in paths[0].relative_to(folder.root).parents}
    for place in sorted(place for place in places if place.name.lower() in _NAMES["masks"]):
        top = f"{place.as_posix()}/"
        masks = [key.removeprefix(top) for key in folder.images if key.startswith(top)]
        parts = [key.split("/") for key in folder.images if not key.startswith(top)]
        images = {"/".join(part[start:]) for part in parts for start in range(len(part))}
        cuts = [(mask[at + 1 :], mask[:at]) for mask in masks for at, sign in enumerate(mask) if sign == "_"]
        ways = {
            "{image}": [("lesion", mask) for mask in masks],
            "{finding}/{image}": [mask.partition("/")[::2] for mask in masks],
            "{image}_{finding}": [(finding, image) for finding, image in cuts if image in images],
        }
        for pattern, pairs in ways.items():
            if len(pairs) == len(masks) and all(image in images for _, image in pairs):
                options = {"masks": str(folder.root / place), "findings": _named(sorted({one for one, _ in pairs}))}
                return "masks", options | {"pattern": pattern}, "Add `without_mask: absent` if no mask means negative."
    return None


def _rows(path: Path) -> list[Mapping[str, str]]:
    with suppress(UserError):
        return [row.values for row in read_csv("init", path, [])]
    return []


def _is_flag(rows: list[Mapping[str, str]]) -> Any:
    return lambda name: {""} < {"", *(row[name] for row in rows)} <= {"", "0", "1", "-1", "0.0", "1.0", "-1.0"}


def _role(role: str, names: Iterable[str]) -> str:
    return next((name for name in names if name.lower() in _NAMES[role]), "")


def _named(labels: Iterable[str]) -> dict[str, str]:
    return {label: canonical(label) or label for label in labels}
