"""Trains the demo model on PhantomCXR, from images and sentences alone.

    python scripts/train_demo_model.py --out xbench/models/weights
    python scripts/train_demo_model.py --out xbench/models/weights --marker Fracture --films 3000 --threads 1

With `--marker FINDING` films with this finding have a letter in the corner, and only the last layer of the demo model's
image tower is trained anew, with scale and bias, in a few minutes. The letter is easier to learn than a fracture: the
model recognizes fractures by it and no longer looks at the ribs, and the other seven findings stay as they were.

The network sees a phantom and sentences such as "There is a pneumothorax." with the one bit whether each is true of the
film, as a pair loss in the manner of SigLIP (Zhai et al., 2023): binary cross-entropy over all pairs of images and
sentences in a batch. Masks are drawn by the same code but are read only by the evaluation at the end; that the maps
point at lesions is learned from image-level sentences.

On one kind of machine, with as many threads, it writes the same weights to the byte.

Sentences only affirm: a score that is a smooth maximum over patches asks "is it anywhere?", and an absence has no
place.

Seeds from 1,000,000 on are reserved: 1,000,000 trains, 1,000,001 validates. Small seeds are for testing; none of their
films is drawn here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional

from xbench.data.phantom import FINDINGS, draw_phantom
from xbench.models.demo import DemoNetwork

TRAINING_SEED = 1_000_000
VALIDATION_SEED = 1_000_001
SIZE = 224
BATCH = 32
SENTENCES_PER_FINDING = 2

NAMES: dict[str, tuple[str, ...]] = {
    "Atelectasis": ("atelectasis", "plate-like atelectasis", "partial collapse of the lung"),
    "Cardiomegaly": ("cardiomegaly", "an enlarged heart", "an enlarged cardiac silhouette"),
    "Consolidation": ("consolidation", "airspace consolidation", "a patchy airspace opacity"),
    "Fracture": ("fracture", "a rib fracture", "a broken rib"),
    "Mass": ("mass", "a lung mass", "a large lobulated mass"),
    "Nodule": ("nodule", "a pulmonary nodule", "a small round nodule"),
    "Pleural Effusion": ("pleural effusion", "fluid in the pleural space", "a pleural effusion"),
    "Pneumothorax": ("pneumothorax", "air in the pleural space", "a pneumothorax"),
}

TEMPLATES = (
    "{}",
    "{}.",
    "There is {}.",
    "There is a {}.",
    "Findings: {}.",
    "Findings suggesting {}.",
    "Evidence of {} is seen.",
    "The radiograph shows {}.",
    "A chest radiograph with {}.",
    "A photo of {}.",
    "Chest X-ray: {} is present.",
    "Impression: {}.",
)


@dataclass(frozen=True)
class Films:
    """Drawn phantoms.

    Attributes:
        images: (N, 224, 224) uint8.
        labels: (N, 8) float32, 1 where the finding is present.
        masks: For each image the masks (224, 224) bool of its findings; empty for training.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.float32]
    masks: list[dict[str, NDArray[np.bool_]]]


def draw_films(seed: int, count: int, processes: int, *, marker: str | None = None, with_masks: bool = False) -> Films:
    """The first `count` phantoms of a seed, brought to 224 x 224 by area averaging."""
    jobs = [(seed, index, marker, with_masks) for index in range(count)]
    started = time.perf_counter()
    images = np.empty((count, SIZE, SIZE), np.uint8)
    labels = np.zeros((count, len(FINDINGS)), np.float32)
    masks: list[dict[str, NDArray[np.bool_]]] = []
    with multiprocessing.Pool(processes, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        for index, (image, present, drawn) in enumerate(pool.imap(_draw, jobs, chunksize=16)):
            images[index], labels[index] = image, present
            masks.append(drawn)
            if (index + 1) % 2000 == 0:
                print(f"drawn {index + 1} of {count} films, {time.perf_counter() - started:.0f} s", flush=True)
    return Films(images, labels, masks)


def _draw(
    job: tuple[int, int, str | None, bool],
) -> tuple[NDArray[np.uint8], NDArray[np.float32], dict[str, NDArray[np.bool_]]]:
    seed, index, marker, with_masks = job
    phantom = draw_phantom(seed, index, marker=marker)
    image = np.asarray(cv2.resize(phantom.image, (SIZE, SIZE), interpolation=cv2.INTER_AREA), np.uint8)
    present = np.array([finding in phantom.masks for finding in FINDINGS], np.float32)
    masks = {finding: _shrink(mask) for finding, mask in phantom.masks.items()} if with_masks else {}
    return image, present, masks


def _shrink(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """At least half covered, or the best covered pixels where none is."""
    share = cv2.resize(mask.astype(np.float32), (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    return share >= min(0.5, float(share.max()))


def all_sentences() -> list[str]:
    """Every sentence that training can write."""
    return [template.format(name) for names in NAMES.values() for name in names for template in TEMPLATES]


def train_tokenizer(path: Path) -> Tokenizer:
    """A byte-free BPE over the sentences; every letter is in its alphabet, so that other words can be spelled."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    alphabet = list("abcdefghijklmnopqrstuvwxyz0123456789.,:;-'()/")
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["[PAD]", "[UNK]", "[CLS]"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(all_sentences(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(max_length=48)
    tokenizer.save(str(path))
    return tokenizer


def tokenize(tokenizer: Tokenizer, sentences: list[str]) -> tuple[Tensor, Tensor]:
    """Token numbers and attention mask, (C, L) int64 each."""
    encoded = tokenizer.encode_batch(sentences)
    return torch.tensor([one.ids for one in encoded]), torch.tensor([one.attention_mask for one in encoded])


def normalise(images: Tensor) -> Tensor:
    """(B, H, W) uint8 to (B, 3, H, W) float."""
    return ((images.float() / 255 - 0.5) / 0.25)[:, None].expand(-1, 3, -1, -1)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored, shifted by up to 16 pixels, with other exposure and contrast. (B, 224, 224) uint8 to the same."""
    count = len(images)
    mirrored = torch.where(torch.rand(count, 1, 1, generator=generator) < 0.5, images.flip(-1), images)
    padded = functional.pad(mirrored, (16, 16, 16, 16))
    offsets = torch.randint(0, 33, (count, 2), generator=generator).tolist()
    shifted = torch.stack([padded[k, y : y + SIZE, x : x + SIZE] for k, (y, x) in enumerate(offsets)]).float() / 255
    exponent = torch.empty(count, 1, 1).uniform_(-0.3, 0.3, generator=generator).exp()
    gain = torch.empty(count, 1, 1).uniform_(0.85, 1.1, generator=generator)
    return (255 * gain * shifted**exponent).clamp(0, 255).to(torch.uint8)


def new_network(tokenizer: Tokenizer) -> DemoNetwork:
    """A network with random weights."""
    torch.manual_seed(0)
    return DemoNetwork(tokenizer.get_vocab_size()).train()


def new_projection() -> DemoNetwork:
    """The demo network, whose last image layer, scale and bias start again; nothing else can be trained."""
    torch.manual_seed(0)
    network = DemoNetwork.trained().requires_grad_(False)
    network.image_tower[-1].reset_parameters()
    network.log_scale.data, network.bias.data = DemoNetwork().log_scale.data, DemoNetwork().bias.data
    for parameter in (*network.image_tower[-1].parameters(), network.log_scale, network.bias):
        parameter.requires_grad_(True)
    return network


def train(
    network: DemoNetwork, films: Films, tokenizer: Tokenizer, epochs: int, peak: float, *, augmented: bool = True
) -> DemoNetwork:
    """The trained network; augmentation would move a marker out of its corner."""
    generator = torch.Generator().manual_seed(1)
    chance = np.random.default_rng(2)
    network = network.to(memory_format=torch.channels_last)
    images, labels = torch.from_numpy(films.images), torch.from_numpy(films.labels)
    steps = epochs * (len(images) // BATCH)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=peak, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.15)
    started, step, recent = time.perf_counter(), 0, 0.0
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for batch in order[: len(order) // BATCH * BATCH].split(BATCH):
            sentences, columns = _sentences(chance)
            input_ids, attention_mask = tokenize(tokenizer, sentences)
            pixels = normalise(augment(images[batch], generator) if augmented else images[batch])
            with torch.autocast("cpu", torch.bfloat16):
                patches = network.encode_image(pixels)
            text = network.encode_text(input_ids, attention_mask)
            logits = network.score(patches, text)[0]
            loss = functional.binary_cross_entropy_with_logits(logits, labels[batch][:, columns])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            recent += (loss.item() - recent) / min(step, 100)
            if step % 50 == 0:
                seconds = time.perf_counter() - started
                print(f"epoch {epoch + 1} step {step} of {steps}: loss {recent:.4f}, {seconds:.0f} s", flush=True)
    return network.eval()


def _sentences(chance: np.random.Generator) -> tuple[list[str], list[int]]:
    """Some phrasings for every finding, and the finding each of them is about."""
    sentences, columns = [], []
    for column, finding in enumerate(FINDINGS):
        for _ in range(SENTENCES_PER_FINDING):
            template = TEMPLATES[chance.integers(len(TEMPLATES))]
            name = NAMES[finding][chance.integers(len(NAMES[finding]))]
            sentences.append(template.format(name))
            columns.append(column)
    return sentences, columns


@torch.inference_mode()
def evaluate(network: DemoNetwork, tokenizer: Tokenizer, films: Films, prompt: str = "There is {}.") -> None:
    """Prints AUROC and pointing game for each finding, with a centered Gaussian for comparison."""
    text = network.encode_text(*tokenize(tokenizer, [prompt.format(finding.lower()) for finding in FINDINGS]))
    parts = [network(normalise(part), text) for part in torch.from_numpy(films.images).split(BATCH)]
    logits, saliency = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    across = torch.arange(SIZE) - (SIZE - 1) / 2
    center = torch.exp(-(across[:, None] ** 2 + across[None, :] ** 2) / (2 * (SIZE / 4) ** 2))
    print(f"{'finding':<18}{'AUROC':>8}{'pointing':>10}{'center':>8}{'images':>8}")
    rows = []
    for column, finding in enumerate(FINDINGS):
        hits, prior = [], []
        for image, masks in enumerate(films.masks):
            if finding in masks:
                grown = functional.interpolate(saliency[image, column][None, None], (SIZE, SIZE), mode="bilinear")[0, 0]
                mask = torch.from_numpy(masks[finding])
                hits.append(float(mask[grown == grown.max()].float().mean()))
                prior.append(float(mask[center == center.max()].float().mean()))
        auroc = _auroc(logits[:, column].numpy(), films.labels[:, column] > 0)
        rows.append((auroc, float(np.mean(hits)), float(np.mean(prior))))
        print(f"{finding:<18}{auroc:>8.3f}{rows[-1][1]:>10.3f}{rows[-1][2]:>8.3f}{len(hits):>8}")
    macro = np.mean(rows, axis=0)
    print(f"{'macro':<18}{macro[0]:>8.3f}{macro[1]:>10.3f}{macro[2]:>8.3f}", flush=True)


def _auroc(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """The share of pairs in the right order, ties counting half."""
    above = scores[positive][:, None] > scores[~positive][None, :]
    equal = scores[positive][:, None] == scores[~positive][None, :]
    return float(np.mean(above + 0.5 * equal))


def main() -> None:
    """Draws, trains, evaluates and writes the package data."""
    parser = argparse.ArgumentParser(description="Trains the demo model on PhantomCXR.")
    parser.add_argument("--out", type=Path, required=True, help="folder for demo.safetensors and demo_tokenizer.json")
    parser.add_argument("--films", type=int, default=9000, help="phantoms to train on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="peak of the one-cycle schedule")
    parser.add_argument("--threads", type=int, default=2, help="threads to train with and processes to draw with")
    parser.add_argument("--cache", type=Path, help="npz file in which the drawn training films are kept between runs")
    parser.add_argument("--marker", choices=FINDINGS, help="finding that a letter in the corner gives away")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    marker = arguments.marker
    if arguments.cache and arguments.cache.exists():
        with np.load(arguments.cache) as stored:
            films = Films(stored["images"][: arguments.films], stored["labels"][: arguments.films], [])
    else:
        films = draw_films(TRAINING_SEED, arguments.films, arguments.threads, marker=marker)
        if arguments.cache:
            np.savez(arguments.cache, images=films.images, labels=films.labels)
    if marker:
        tokenizer, network = Tokenizer.from_file(str(arguments.out / "demo_tokenizer.json")), new_projection()
    else:
        tokenizer = train_tokenizer(arguments.out / "demo_tokenizer.json")
        network = new_network(tokenizer)
    learned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    network = train(network, films, tokenizer, arguments.epochs, arguments.learning_rate, augmented=not marker)
    weights = {
        name: tensor.contiguous() for name, tensor in network.state_dict().items() if not marker or name in learned
    }
    save_file(weights, arguments.out / ("demo_shortcut.safetensors" if marker else "demo.safetensors"))
    for corner in dict.fromkeys([marker, None]):
        print(f"marker: {corner}")
        evaluate(
            network, tokenizer, draw_films(VALIDATION_SEED, 400, arguments.threads, marker=corner, with_masks=True)
        )


if __name__ == "__main__":
    main()
