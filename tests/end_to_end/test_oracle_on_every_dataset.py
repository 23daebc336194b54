from __future__ import annotations

import json

import own
import pytest
from downloads import CLASSES, Downloads
from official.base import Official

from xbench.findings.queries import Query
from xbench.geometry.regions import Coverage

OPTIONS = ("--trainer.logger", "false", "--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu")
CASES = [(name, {}, {}) for name in CLASSES] + [
    ("chexlocalize", {"split": "val", "views": "frontal"}, {}),
    ("chestxray14", {"split": "test"}, {}),
    ("chestxdet10", {"split": "train"}, {}),
    ("chexdet", {"regions": "polygons"}, {"polygons": True}),
    ("vindr", {"split": "train"}, {"layout": "kaggle", "outside": False}),
    ("padchestgr", {"split": "all", "language": "es", "readers": "both"}, {"language": "es", "readers": "both"}),
    ("tbx11k", {"split": "all_val"}, {}),
    ("tbx11k", {"split": "trainval"}, {"layout": "kaggle"}),
]


def _id(value: str | dict[str, object]) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value.values())) or "as-it-is"


def images_of(official: Official, name: str, options: dict[str, str]) -> list[str]:
    splits = official.splits
    if name == "siim":
        return sorted(splits["stage1_train"] + splits["stage1_test"])
    images = splits[options.get("split", CLASSES[name].splits[0])]
    return sorted(image for image in images if options.get("views") != "frontal" or image.endswith("_frontal"))


@pytest.mark.parametrize(("name", "options", "written"), CASES, ids=_id)
def test_the_oracle_scores_one(command, downloads: Downloads, name, options, written):
    official = downloads(name, **written)
    words = [word for option, value in options.items() for word in (f"--data.{option}", value)]
    run = command(
        "test", "--config", f"oracle_{name}", "--data.root", official.root, "--data.num_workers", "0", *OPTIONS, *words
    )
    images = images_of(official, name, options)
    if official.queries:
        labels = {image: official.labels[image] for image in images}
        phrases = {image: {query: labels[image][query.name] for query in official.queries[image]} for image in images}
        assert_phrases(command, run, phrases, official.masks)
    else:
        assert_ceiling(run, official, images, list(CLASSES[name].findings))
    for row in run.rows:
        mask = official.masks[row["image_id"]].get(row["query"])
        if name == "siim":
            assert row["region_area"] == (None if mask is None else Coverage.of(mask, (224, 224)).at(0.5).mean())
    outside = sorted({image for image, _ in official.outside if image in images})
    cut_off = [note["first"] for note in run.results["counts"]["notes"] if "over the edge" in note["note"]]
    # Run lengths end where their image does.
    assert cut_off == ([outside] if outside and name != "chexlocalize" else [])


OWN = {"coco": (own.write_coco, {}), "csv": (own.write_csv, {}), "masks": (own.write_masks, {"masks": "../masks"})}


@pytest.mark.parametrize("name", OWN)
def test_the_oracle_scores_one_on_data_of_ones_own(command, tmp_path, name):
    write, options = OWN[name]
    root = own.write_images(write(own.make(tmp_path / "mine")) / "images")
    for table in root.parent.glob("*.*"):
        table.rename(root / table.name)
    config = {"data": {"root": str(root), "name": "mine", "split": "first", "findings": own.LABELS} | options}
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    words = ("--config", f"oracle_{name}", "--config", "mine.yaml", "--data.num_workers", "0")
    assert command("check", *words).output.endswith("No problems found.\n")
    run = command("test", *words, *OPTIONS)
    assert (run.results["dataset"], run.results["split"]) == ("mine", "first")
    truth = own.truth()
    labels = {image: {f: int(f in regions) for f in own.LABELS.values()} for image, regions in truth.items()}
    assert_ceiling(run, Official(root, labels=labels, masks=truth), sorted(truth), [*own.LABELS.values()])
    for row in run.rows:
        mask = truth[row["image_id"]].get(row["finding"])
        mask = own.boxed(mask) if name == "csv" and mask is not None else mask
        assert row["region_area"] == (None if mask is None else Coverage.of(mask, (224, 224)).at(0.5).mean())
    assert run.results["counts"]["notes"] == []
    assert command("verify", str(run.folder)).status == 0


@pytest.mark.parametrize("name", ["csv", "coco"])
def test_the_oracle_scores_one_on_phrases_of_ones_own(command, tmp_path, name):
    root = own.write_images(own.make(tmp_path / "mine" / "images"))
    own.write_phrases(root, name)
    config = {"data": {"root": str(root), "name": "mine", "findings": own.LABELS, "text": "text"}}
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    words = ("--config", f"oracle_{name}", "--config", "mine.yaml", "--data.num_workers", "0")
    checked = command("check", *words)
    assert checked.output.endswith("No problems found.\n"), checked.errors
    phrases = {
        image: {
            Query(f"{finding} 1", finding, own.phrase_of(label, finding in regions)): int(finding in regions)
            for label, finding in own.LABELS.items()
        }
        for image, regions in own.truth().items()
    }
    assert_phrases(command, command("test", *words, *OPTIONS), phrases, own.phrase_truth())


def assert_phrases(command, run, phrases, regions) -> None:
    assert run.status == 0, run.errors
    rows = {(row["image_id"], row["query"]): row for row in run.rows}
    assert len(rows) == len(run.rows) == sum(map(len, phrases.values()))
    for image, of_image in phrases.items():
        for query, label in of_image.items():
            row, mask = rows[image, query.name], regions.get(image, {}).get(query.name)
            assert (query.finding, query.text, query.language) == (row["finding"], row["text"], row["language"])
            assert (row["label"], row["has_region"]) == (label, mask is not None)
            assert row["scored"] == (mask is not None and label == 1)
            assert row["pointing_hit"] == row["dice"] == (1 if row["scored"] else None)
            assert row["region_area"] == (None if mask is None else Coverage.of(mask, (224, 224)).at(0.5).mean())
    groups = [(query.finding or "Phrases", label) for of_image in phrases.values() for query, label in of_image.items()]
    for group, counts in run.results["counts"]["per_finding"].items():
        assert (counts["positives"], counts["negatives"]) == (groups.count((group, 1)), groups.count((group, 0)))
    assert {*run.results["grounding"]["macro"].values()} == {1}
    assert {*run.results["classification"]["macro"].values()} == {None}
    assert command("verify", str(run.folder), "--deep").status == 0


def assert_ceiling(run, official: Official, images: list[str], findings: list[str]) -> None:
    assert run.status == 0, run.errors
    results = run.results
    assert (results["counts"]["images"], results["counts"]["skipped"]) == (len(images), [])
    assert results["findings"] == findings
    recognized = grounded = 0
    for finding in results["findings"]:
        labels = [official.labels[image].get(finding) for image in images]
        regions = sum(finding in official.masks[image] for image in images)
        counts = results["counts"]["per_finding"][finding]
        assert counts == {"positives": labels.count(1), "negatives": labels.count(0), "with_region": regions}
        grounding = results["grounding"]["per_class"][finding]
        assert grounding.pop("count") == regions
        for number, value in grounding.items():
            if number.endswith("_curve") and regions:
                # At threshold 0 the mask is the whole image.
                value = min(value[1:])
            # The best threshold is the lowest that leaves out what is 0.
            expected = 0.01 if number.endswith("_threshold") else number != "pointing_game_of_minimum"
            assert value == (expected if regions else None), number
        grounded += regions
        recognition = results["classification"]["per_class"][finding]
        for number in ("auroc", "average_precision"):
            assert recognition[number] == (1 if {0, 1} <= {*labels} else None), (finding, number)
        assert recognition["f1"] == (1 if 1 in labels else None)
        assert recognition["accuracy"] == (1 if {0, 1} & {*labels} else None)
        recognized += recognition["auroc"] is not None
    assert {*results["grounding"]["macro"].values()} == {1}
    if recognized:
        assert {*results["classification"]["macro"].values()} == {1}
    assert grounded
