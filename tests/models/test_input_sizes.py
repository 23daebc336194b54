"""Every model at twice the usual size: what the study of the input's resolution stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from deterministic import grey, images_of
from deterministic_checkpoints import MODELS, write_checkpoint
from small_networks import shrink
from torch import Tensor

from xbench.errors import UserError
from xbench.models import CLIP, KAD, MAVL, VLM, BiomedCLIP, CARZero, DeViDe, MedKLIP
from xbench.models.components.book import TRUNK_WIDTH
from xbench.models.mavl import _AttentionPool

SIZE = 448
CLASSES = {
    "clip": CLIP,
    "biomedclip": BiomedCLIP,
    "carzero": CARZero,
    "medklip": MedKLIP,
    "kad": KAD,
    "mavl": MAVL,
    "devide": DeViDe,
}
# Sides of the squares that their cells stand for.
STRIDES = dict.fromkeys(MODELS, 16) | {"clip": 32, "kad": 32}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def build(model: str) -> Iterator[Callable[..., VLM]]:
    """Makes the model, a small one, from options."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield partial(CLASSES[model], **write_checkpoint(model, Path(folder)))


def queries_of(network: VLM) -> Tensor:
    return network.encode_prompts([network.default_prompts(finding) for finding in ("Nodule", "Edema")])


def test_maps_have_finer_cells_that_lie_where_the_pixels_are(model: str, build: Callable[..., VLM]) -> None:
    network, side = build(image_size=SIZE), SIZE // STRIDES[model]
    assert network.preprocessing(grey("sizes", 300, 417))[0].shape == (3, SIZE, SIZE)
    images = images_of("sizes", 1, SIZE).repeat(2, 1, 1, 1)
    images[1, :, 64:128, 320:384] += 3.0
    with torch.inference_mode():
        output = network(images, queries_of(network))
    assert output.logits.shape == output.probabilities.shape == (2, 2)
    assert output.saliency.shape == (2, 2, side, side)
    assert torch.isfinite(output.logits).all() and torch.isfinite(output.saliency).all()
    change = (output.saliency[1] - output.saliency[0]).abs().mean(dim=0)
    row, column = (STRIDES[model] * (place + 0.5) for place in divmod(int(change.argmax()), side))
    # Around what changed, a cell sees it too.
    around = STRIDES[model]
    assert 64 - around < row < 128 + around and 320 - around < column < 384 + around


def test_cells_must_tile_the_input(model: str, build: Callable[..., VLM]) -> None:
    with pytest.raises(UserError, match=rf"image_size.* multiple of .*{STRIDES[model]}") as caught:
        build(image_size=232)
    assert caught.value.exit_status == 2


def test_mavl_interpolates_what_its_other_score_needs() -> None:
    """Of positions that rise with the row, those in between are known; the first is that of the mean, and stays."""
    pool = _AttentionPool()
    rows = torch.arange(14.0)[:, None].expand(14, 14).flatten()
    pool.positional_embedding.data = torch.cat([torch.tensor([-7.0]), rows])[:, None].repeat(1, TRUNK_WIDTH)
    positions = pool._positions(torch.Size((28, 28))).detach()
    assert (positions[0] == -7).all()
    inner = positions[1:].unflatten(0, (28, 28))[4:-4]
    expected = ((torch.arange(28.0) + 0.5) / 2 - 0.5)[4:-4, None, None]
    # PyTorch's cubic kernel is a twentieth of a step off.
    assert float((inner - expected).abs().max()) < 0.05
