from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
from downloads import assert_reads, notes_of, records_of, refusal, write_small
from official.covid import write_covid
from PIL import Image, ImageDraw

from xbench.data import COVID19Rural

NO_MASK = "a radiograph with opacity but without a mask image, scored for recognition only"
NOT_USED = "a mask image of a radiograph without a polygon of opacity, not used"
MASK_ALONE = "a radiograph without a LabelMe file; its mask image decides whether it is positive"
BEYOND = "a mask image far beyond the polygons: more of it lies outside than they cover"


def without_masks(official) -> list[str]:
    folder = official.root / "covid_rural_annot" / "pngs_masks"
    return [name for name in official.splits["all"] if not (folder / f"{name}.png").exists()]


def test_regions_from_the_masks(downloads):
    official = downloads("covid", outside=False)
    data = COVID19Rural(str(official.root), regions="masks")
    missing = [name for name in without_masks(official) if official.labels[name]["COVID-19"]]
    assert len(missing) == 2
    expected = replace(official, masks=official.masks | {name: {} for name in missing})
    assert assert_reads(data, expected, official.splits["all"]) == {}
    notes = notes_of(data)
    assert notes[NO_MASK] == missing
    negative = [record.image_id for record in data.records if not official.labels[record.image_id]["COVID-19"]]
    assert notes[NOT_USED] == [name for name in negative if name not in without_masks(official)]


def test_masks_that_hold_the_lungs_as_well_are_noticed(tmp_path):
    official = write_covid(tmp_path / "download", lungs_in_masks=True)
    data = COVID19Rural(str(official.root), regions="masks")
    records = records_of(data)
    positive = [n for n in records if official.labels[n]["COVID-19"] and n not in without_masks(official)]
    assert {name: data.load(records[name]).notes for name in positive} == dict.fromkeys(positive, (BEYOND,))
    assert {name: record.labels for name, record in records.items()} == official.labels
    assert_reads(COVID19Rural(str(official.root)), official, official.splits["all"])


def labelme(shapes=(), size=(16, 16), **more):
    content = {
        "version": "4.5.6",
        "shapes": [{"label": "consolidation", "shape_type": "polygon", "flags": {}, **shape} for shape in shapes],
        "imageHeight": size[0],
        "imageWidth": size[1],
        "imageData": base64.b64encode(b"whatever").decode(),
    }
    return {**content, **more}


def small(root, content, names=("a",), size=(16, 16)):
    write_small(root / "jpgs", names, ".jpg", size)
    (root / "jpgs" / "jsons").mkdir(exist_ok=True)
    (root / "jpgs" / "jsons" / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_shapes_of_labelme(tmp_path):
    triangle = [[2.5, 2.5], [9.25, 3.75], [4, 11]]
    shapes = [
        {"points": triangle, "label": " Consolidation "},
        {"points": [[14, 15], [12, 13]], "shape_type": "rectangle", "label": "subtle_hazy"},
        {"points": [[0, 0], [15, 0], [15, 15], [0, 15]], "label": "left_lung"},
        {"points": [[0, 0], [15, 0], [15, 15], [0, 15]], "label": "Right_Lung"},
    ]
    data = COVID19Rural(str(small(tmp_path, labelme(shapes))))
    record = records_of(data)["a"]
    canvas = Image.new("1", (16, 16))
    ImageDraw.Draw(canvas).polygon([tuple(point) for point in triangle], outline=1, fill=1)
    ImageDraw.Draw(canvas).rectangle([(12, 13), (14, 15)], outline=1, fill=1)
    np.testing.assert_array_equal(data.load(record).regions["COVID-19"], np.array(canvas))
    assert data.notes == []


def test_a_mask_without_outlines_decides(tmp_path):
    root = small(tmp_path, labelme(), names=("a", "b", "c"))
    masks = root / "pngs_masks"
    masks.mkdir()
    mask = np.zeros((16, 16), np.uint8)
    Image.fromarray(mask).save(masks / "c.png")
    mask[3:7, 4:6] = 1
    Image.fromarray(mask).save(masks / "b.png")
    data = COVID19Rural(str(root), regions="masks")
    records = records_of(data)
    assert {name: record.labels["COVID-19"] for name, record in records.items()} == {"a": 0, "b": 1, "c": 0}
    np.testing.assert_array_equal(data.load(records["b"]).regions["COVID-19"], mask > 0)
    assert notes_of(data) == {MASK_ALONE: ["b", "c"]}
    assert list(records_of(COVID19Rural(str(root)))) == ["a"], "on request only"


def test_two_files_about_one_image(tmp_path):
    root = small(tmp_path, labelme())
    (root / "old" / "jsons").mkdir(parents=True)
    (root / "old" / "jsons" / "a.json").write_text(json.dumps(labelme()))
    assert "'a' is annotated twice" in refusal("covid", root)
    (root / "old" / "jsons" / "a.json").unlink()
    for folder in ("old", "new"):
        write_small(root / folder / "pngs_masks", ["a"])
    assert "a has several masks" in refusal("covid", root, regions="masks")
