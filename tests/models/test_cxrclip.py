from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deterministic import images_of, quick_weight, tokens_of
from deterministic_checkpoints import write_checkpoint
from golden import shapes_of
from safetensors.torch import save_file
from small_networks import largest
from torch import Tensor
from torchvision.models import resnet50
from transformers import BertConfig, BertModel, SwinConfig, SwinModel

from xbench.models import CXRCLIP
from xbench.runtime.errors import UserError


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_checkpoint("cxrclip", tmp_path_factory.mktemp("r50"))


@pytest.fixture(scope="module")
def tensors(arguments: dict[str, str]) -> dict[str, Tensor]:
    return torch.load(arguments["checkpoint"])["model"]


@pytest.fixture(scope="module")
def swin(arguments: dict[str, str], tensors: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("swin") / "swint_m.tar"
    image = {f: quick_weight(f"other/{f}", shape) for f, shape in shapes_of("cxrclip_swint").items()}
    block = "image_encoder.image_encoder.encoder.layers.0.blocks.0.attention.self"
    image[f"{block}.relative_position_index"] = torch.zeros(49, 49, dtype=torch.long)
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith("image_")}
    torch.save({"model": {**text, **image}}, path)
    return str(path)


def projected(tensors: dict[str, Tensor], name: str, vectors: Tensor) -> Tensor:
    return vectors @ tensors[f"{name}.projection.weight"].T + tensors[f"{name}.projection.bias"]


def test_the_mean_of_a_map_is_the_score(arguments: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Text and image by other ways than the model's: unpadded sentences one by one, torchvision's own pooling."""
    model, images = CXRCLIP(**arguments), images_of("score", 2)
    ids, mask = tokens_of("score", 4, 24, vocabulary=2000)
    ids %= 1000
    width = tensors["text_encoder.text_encoder.embeddings.word_embeddings.weight"].shape[0]
    bert = BertModel(BertConfig(vocab_size=width, num_hidden_layers=1, intermediate_size=64)).eval()
    prefix = "text_encoder.text_encoder."
    bert.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
    with torch.no_grad():
        last = [bert(row[None, : int(m.sum())]).last_hidden_state[0, -1] for row, m in zip(ids, mask, strict=True)]
    text = torch.nn.functional.normalize(projected(tensors, "text_projection", torch.stack(last)), dim=1)
    queries = model.encode_tokens(ids, mask)
    assert largest(queries, text) < 1e-6
    resnet = resnet50()
    resnet.fc = torch.nn.Identity()
    prefix = "image_encoder.resnet."
    resnet.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
    with torch.no_grad():
        vectors = projected(tensors, "image_projection", resnet.eval()(images))
    cosines = torch.nn.functional.normalize(vectors, dim=1) @ text.T
    output = model(images, torch.stack([queries[:2], queries[2:]], dim=1))
    assert largest(output.logits, cosines[:, :2] - cosines[:, 2:]) < 1e-6
    share = torch.stack([cosines[:, :2], cosines[:, 2:]], dim=-1).softmax(dim=-1)[..., 0]
    assert largest(output.probabilities, share) < 1e-6
    assert largest(output.saliency.mean(dim=(2, 3)) / vectors.norm(dim=1)[:, None], cosines[:, :2]) < 1e-6
    cells = CXRCLIP(**arguments, saliency="cell")(images, torch.stack([queries[:2], queries[2:]], dim=1)).saliency
    assert float(cells.abs().max()) <= 1 and cells.shape == (2, 2, 7, 7)


@pytest.mark.parametrize("size", [224, 256])
def test_a_swin_is_that_of_transformers(arguments: dict[str, str], swin: str, size: int) -> None:
    """Whose loader converts the old names by itself; the upper left cell is the image."""
    tensors = torch.load(swin)["model"]
    prefix = "image_encoder.image_encoder."
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix) and "_index" not in n}
    plain = SwinModel.from_pretrained(None, config=SwinConfig(), state_dict=own, add_pooling_layer=False).eval()
    model, images = CXRCLIP(swin, arguments["text_encoder"], image_size=size), images_of("swin", 2, size)
    queries = model.encode_prompts([["edema", "No edema"]])
    with torch.no_grad():
        cells = projected(tensors, "image_projection", plain(images).last_hidden_state)
    cosines = torch.nn.functional.normalize(cells, dim=-1) @ queries[0].T
    output = model(images, queries)
    assert largest(output.logits[:, 0], cosines[:, 0, 0] - cosines[:, 0, 1]) < 1e-6
    assert largest(output.saliency[:, 0].flatten(1), cosines[..., 0]) < 1e-6
    assert output.saliency.shape[-1] == size // 32
    assert "upper left cell" in model.exploratory and not CXRCLIP(**arguments).exploratory


def test_what_convert_writes_of_a_swin_loads_again(command, arguments: dict[str, str], swin: str, tmp_path: Path):
    converted = tmp_path / "swin.safetensors"
    command("convert", "cxrclip", swin, converted, status=0)
    first, again = (CXRCLIP(str(path), arguments["text_encoder"]).state_dict() for path in (swin, converted))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_of_several_prompts_the_mean_cosine_counts(arguments: dict[str, str]) -> None:
    model = CXRCLIP(**arguments)
    one, two, absent = model.encode_texts(["edema", "fluid", "No edema"])
    queries = model.encode_prompts([["edema", "fluid", "No edema"]])
    torch.testing.assert_close(queries, torch.stack([(one + two) / 2, absent])[None])
    # The configuration in the file says 128.
    with pytest.raises(UserError, match="longer than the 128 tokens that CXR-CLIP reads"):
        model.encode_texts(["edema " * 130])


def test_a_converted_file_keeps_the_length_of_texts_and_what_labels_it_has_seen(
    arguments: dict[str, str], tmp_path: Path
) -> None:
    official, path = tmp_path / "r50_mcc.tar", tmp_path / "r50.safetensors"
    official.symlink_to(arguments["checkpoint"])
    model = CXRCLIP(str(official), arguments["text_encoder"])
    save_file({**model.weights()}, path, {**model.remarks()})
    for one in (model, CXRCLIP(str(path), arguments["text_encoder"])):
        assert one.text_length == 128 and one.trained_on == ("CheXpert", "chestxray14")
    assert CXRCLIP(**arguments).trained_on == ()
