from __future__ import annotations

import gc
import os
from types import MappingProxyType

import numpy as np
import pytest
import torch
from lightning.fabric.utilities import move_data_to_device
from toys import Brightness, Squares

from xbench.callbacks.case_keeper import kept_of
from xbench.data.records import Record
from xbench.data.workers import handover
from xbench.runs.files import PICTURES, TRUTH
from xbench.runs.journal import decoded
from xbench.runtime.errors import UserError
from xbench.types import Batch, Failure, Note


def sample_of(**options):
    data = Squares(num_workers=0, **options)
    data.setup("test")
    return data.samples(Brightness().preprocessing)


def test_native_sample():
    samples = sample_of(grid="native", widths=[64, 50], odd=[3])
    data = Squares(widths=[64, 50])
    for index in (2, 3):
        sample, radiograph = samples[index], data.load(data.read_records(annotated=True)[index])
        assert sample.display.numpy().shape == (80, [64, 50][index % 2])
        assert np.array_equal(sample.display, radiograph.image)
        for finding, region in zip(data.findings, sample.truth.regions, strict=True):
            assert (region is not None) == (finding in radiograph.regions)
            assert region is None or np.array_equal(region, radiograph.regions[finding])
        assert sample.notes == (Note("an annotation is odd", sample.truth.image_ids[0]),) * (2 * (index == 3))


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    return [batch.images, *batch.display, *drawn(batch)]


def drawn(batch: Batch) -> list[torch.Tensor]:
    return [region for region in batch.truth.regions if region is not None]


@pytest.mark.parametrize("widths", [(64,), (64, 50, 41)])
def test_batches_hold_each_image_on_its_grid(widths):
    samples = sample_of(grid="native", widths=widths, odd=[3, 4])
    chosen = [samples[index] for index in (3, 4, 2, 9)]
    batch = Batch.collate(chosen)
    assert len(batch) == 4
    for row, (sample, display) in enumerate(zip(chosen, batch.display, strict=True)):
        assert torch.equal(display, sample.display) and display.dtype == torch.uint8
        for one, other in zip(batch.truth.regions[3 * row : 3 * row + 3], sample.truth.regions, strict=True):
            assert one is other is None or (torch.equal(one, other) and one.dtype == torch.bool)
    assert batch.truth.has_region.reshape(4, 3).sum(1).tolist() == [2, 0, 0, 2]
    assert batch.notes == [Note("an annotation is odd", "square-003")] * 2


@pytest.mark.parametrize("indices", [(1,), (1, 3, 4)], ids=["nothing readable", "some"])
def test_batches_travel_to_a_device(indices, monkeypatch):
    samples = sample_of(grid="native", widths=[64, 50], unreadable=[1], odd=[3])
    batch = Batch.collate([samples[index] for index in indices])
    moved = move_data_to_device(batch, torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_of(moved)} == {"meta"}
    assert [tensor.shape for tensor in tensors_of(moved)] == [tensor.shape for tensor in tensors_of(batch)]
    for name in ("image_ids", "views", "queries"):
        assert getattr(moved.truth, name) == getattr(batch.truth, name)
    assert (moved.notes, moved.failures) == (batch.notes, batch.failures)
    assert {tensor.device.type for tensor in tensors_of(batch)} == {"cpu"}

    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    before = [*map(id, tensors_of(batch))]
    there = batch.pin_memory()
    assert not {*before} & {*map(id, tensors_of(there))}
    assert {*map(id, pinned)} == {*before}


def loader_of(**options):
    data = Squares(**options)
    data.setup("test")
    return data.test_dataloader()


@pytest.mark.parametrize("way", ["native", "fork", "spawn", "large batches", "many kept"])
def test_batches_of_workers(way, monkeypatch):
    """Each storage takes a file descriptor, and a process has about a thousand, so a batch uses one."""
    monkeypatch.setattr(handover, *(("_SLOT", 4096) if way == "large batches" else ("_SLOTS", 1)))
    monkeypatch.setattr(handover, "_LARGE", 100 if way == "large batches" else 2**20)
    options = dict(grid="native" if way == "native" else 80, batch_size=1 if way == "many kept" else 7)
    options |= dict(widths=[64, 50], unreadable=[*range(7, 14)], on_error="skip", limit=14)
    alone, shared = loader_of(num_workers=0, **options), loader_of(num_workers=1, **options)
    shared.multiprocessing_context = "spawn" if way == "spawn" else None
    batches = list(shared)
    for one, other in zip(alone, batches, strict=True):
        assert one.truth.image_ids == other.truth.image_ids and one.failures == other.failures
        assert one.kept.keys() == other.kept.keys() and len(tensors_of(one)) == len(tensors_of(other))
        parts = [(*tensors_of(batch), *batch.kept.values()) for batch in (one, other)]
        assert all(map(torch.equal, *parts))
        places = [tensor.data_ptr() for tensor in parts[1] if tensor.nbytes > 4096 and tensor.dtype != torch.bool] or [
            0
        ]
        assert max(places) - min(places) <= sum(tensor.nbytes for tensor in parts[1])
    assert len(batches[-1]) == 0 and batches[-1].truth.regions == batches[-1].display == batches[-1].notes == []
    assert [failure.index for batch in batches for failure in batch.failures] == [*range(7, 14)]
    assert len(handover._used) == (way not in ("spawn", "large batches"))


def test_workers_use_memory_again_once_nothing_refers_to_it():
    descriptors = len(os.listdir("/proc/self/fd"))
    iterator, held, places = iter(loader_of(num_workers=1, grid=80, batch_size=1, images=40)), [], []
    parts = [lambda batch: drawn(batch)[0].view(torch.uint8).unbind()[7], lambda batch: batch.images[0, 1, 3:]]
    parts += [lambda batch: batch.display[0].numpy()[5:, 2], *[None] * 37]
    for part, batch in zip(parts, iterator, strict=True):
        places.append(batch.images.data_ptr())
        if part is not None:
            held.append((part(batch), np.array(part(batch))))
            del batch
            if (child := os.fork()) == 0:  # its references are others
                held.clear()
                os._exit(0)
            os.waitpid(child, 0)
    assert len({*places[3:]}) <= 4 and not {*places[:3]} & {*places[3:]}
    assert all(np.array_equal(part, copy) for part, copy in held)
    batch = held = iterator = None
    gc.collect()
    assert not handover._used and not handover._memories and len(os.listdir("/proc/self/fd")) <= descriptors


def test_what_is_kept_of_some_images_is_what_is_kept_of_a_batch_of_these():
    samples, kept = sample_of(), []
    for places, chosen in (((0, 1, 3, 4), [1, 3]), ((1, 4), None)):
        batch = samples.collate([samples[place] for place in places])
        kept.append(kept_of(batch if chosen is None else batch.only(chosen)))
    for name in (TRUTH, PICTURES):
        whole = decoded(name, kept[1][name])
        assert len(whole) and kept[0][name].equals(whole)


def test_unreadable_images_come_as_failures():
    samples = sample_of(unreadable=[1])
    assert isinstance(samples[1], Failure)
    batch = Batch.collate([samples[0], samples[1], samples[2]])
    assert batch.truth.index.tolist() == [0, 2]
    assert batch.truth.image_ids == ["square-000", "square-002"]
    assert [failure.index for failure in batch.failures] == [1]


def test_batches_of_labels_alone_have_those_of_decoded_images():
    samples = sample_of(unreadable=[2])
    decoded = Batch.collate([samples[place] for place in (1, 3, 8)])
    samples.preprocessing.undecoded = True
    batch = Batch.collate([samples[place] for place in (1, 2, 3, 8)]).only([0, 2, 3])
    for name in ("image_ids", "patient_ids", "queries", "views", "index", "image", "labels"):
        one, other = getattr(batch.truth, name), getattr(decoded.truth, name)
        assert type(one) is type(other) and np.array_equal(one, other), name
    assert not batch.truth.has_region.any() and np.isnan(batch.truth.places).all() and not batch.notes
    assert batch.image_sha256 == batch.truth.image_sizes == [None] * 3


def test_batches_without_a_trainer():
    batches = [*loader_of(num_workers=0, batch_size=8)]
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert batches[0].images.shape == (8, 3, 224, 224)
    assert 0 <= batches[0].images.min() <= batches[0].images.max() <= 1
    assert batches[0].truth.views == [(0, 0, 1, 1)] * 8
    data = Squares(num_workers=0, batch_size=8, grid="native", widths=[64, 50])
    data.setup("predict")
    batch = next(iter(data.predict_dataloader()))
    assert (batch.truth.labels == -1).all() and batch.images.shape == (8, 3, 224, 224)


def squares_with(**changes):
    records = changes.pop("records", None)
    if records is not None:
        changes["read_records"] = lambda self, annotated: records
    return type("Odd", (Squares,), {"name": "odd", **changes})(num_workers=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"findings": ("Square", "Hole", "Square")}, "'Square' occurs twice"),
        ({"findings": ("Square", "Ho\nle")}, r"'Ho\\nle' is not a name"),
        ({"findings": ()}, "there are no findings"),
        ({"findings": "Nodule"}, "'Nodule' is a string"),
        ({"name": "../outside"}, "'../outside'"),
        ({"splits": ("te\nst",)}, r"'te\\nst'"),
        ({"records": [Record("a", {}), Record("b", {}), Record("a", {})]}, "image a: two records"),
        ({"records": [Record(7, {})]}, "the image name 7 is invalid"),
        ({"records": [Record("\udcff.png", {})]}, "the image name"),
        ({"records": [Record("a", {}, patient_id=7)]}, "image a: its patient_id, 7"),
        *(
            ({"records": [Record("a", {"Hole": 0}), Record("b", {"Hole": label})]}, "b: it has the label .* for Hole")
            for label in (2, -2, 0.5, float("nan"), "1", None, np.array([0, 1]))
        ),
        ({"records": [Record("a", MappingProxyType({"Hole": 2}))]}, "image a: it has the label 2 for Hole"),
    ],
)
def test_what_no_result_can_be_of_is_refused(changes, said):
    with pytest.raises(UserError, match=f"(?i){said}") as refused:
        squares_with(**changes).setup("test")
    assert "\n" not in str(refused.value)


def test_labels_of_any_number_type_are_taken_and_what_the_limit_leaves_out_may_be_wrong():
    records = [Record("a", {"Square": np.int64(1), "Hole": True}), Record("b", {"Square": -1, "Hole": 0.0})]
    data = squares_with(records=[*records, Record("a", {"Hole": 5})])
    data.limit = 2
    data.setup("test")
    assert data.records == records
