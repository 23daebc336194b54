"""The evaluation as a researcher would write it: one script, a loop over images and a loop over thresholds.

It is meant to be good: images are decoded and resized in worker processes, the model runs on batches without
gradients, prompts are encoded once, and a threshold is compared with all maps of a batch at a time. It scores what
xbench scores, on the same grid and by the same definitions, and its numbers agree.
"""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

GRID = 224


class Images(Dataset):
    def __init__(self, root, findings, mean, std):
        self.paths = sorted((root / "images").glob("*.png"))
        self.findings = findings
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))
        self.boxes = defaultdict(list)
        with open(root / "boxes.csv") as file:
            for row in csv.DictReader(file):
                corners = [int(row[edge]) for edge in ("x0", "y0", "x1", "y1")]
                self.boxes[row["image"]].append((findings.index(row["finding"]), corners))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        picture = Image.open(path).convert("L")
        width, height = picture.size
        resized = np.asarray(picture.resize((GRID, GRID), Image.Resampling.BICUBIC), np.float32) / 255
        image = (torch.from_numpy(resized).expand(3, -1, -1) - self.mean) / self.std
        labels = np.zeros(len(self.findings), np.int64)
        regions = np.zeros((len(self.findings), GRID, GRID), bool)
        for finding, (x0, y0, x1, y1) in self.boxes[path.name]:
            mask = np.zeros((height, width), np.float32)
            mask[y0:y1, x0:x1] = 1
            regions[finding] = cv2.resize(mask, (GRID, GRID), interpolation=cv2.INTER_AREA) >= 0.5
            labels[finding] = 1
        return image, torch.from_numpy(labels), torch.from_numpy(regions)


@torch.inference_mode()
def evaluate(
    model: torch.nn.Module,
    queries: torch.Tensor,
    root: Path,
    findings: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch_size: int = 8,
    workers: int = 2,
) -> tuple[dict[str, float], dict[str, float]]:
    """Macro scores by the names in `results.json`, and seconds by what they went to."""
    thresholds = torch.arange(101) / 100
    dice = [[] for _ in findings]
    iou = [[] for _ in findings]
    hits = [[] for _ in findings]
    all_labels, all_scores = [], []
    seconds = defaultdict(float)
    clock = time.perf_counter()

    def lap(what):
        nonlocal clock
        now = time.perf_counter()
        seconds[what] += now - clock
        clock = now

    loader = DataLoader(Images(root, findings, mean, std), batch_size=batch_size, num_workers=workers)
    for images, labels, regions in loader:
        lap("waiting for images")
        output = model(images, queries)
        lap("forward")
        all_labels.append(labels)
        all_scores.append(output.probabilities)
        image, finding = labels.nonzero(as_tuple=True)
        maps = output.saliency[image, finding].float()
        maps = F.interpolate(maps[:, None], (GRID, GRID), mode="bilinear", align_corners=False)[:, 0]
        region = regions[image, finding]
        lap("upsampling")
        peaks = maps == maps.amax((1, 2), keepdim=True)
        hit = (peaks & region).sum((1, 2)) / peaks.sum((1, 2))
        lap("pointing game")
        low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
        maps = (maps - low) / (high - low)
        size = region.sum((1, 2))
        pair_dice, pair_iou = [], []
        for threshold in thresholds:
            mask = maps >= threshold
            both, one = (mask & region).sum((1, 2)), mask.sum((1, 2))
            pair_dice.append(2 * both.double() / (one + size))
            pair_iou.append(both.double() / (one + size - both))
        for row, c in enumerate(finding.tolist()):
            hits[c].append(hit[row])
            dice[c].append(torch.stack(pair_dice)[:, row])
            iou[c].append(torch.stack(pair_iou)[:, row])
        lap("thresholds")

    labels, scores = torch.cat(all_labels).numpy(), torch.cat(all_scores).double().numpy()
    dice_curves, iou_curves = (torch.stack([torch.stack(c).mean(0) for c in one if c]) for one in (dice, iou))
    numbers = {
        "pointing_game": torch.stack([torch.stack(c).double().mean() for c in hits if c]).mean().item(),
        "dice_fixed": dice_curves[:, 50].mean().item(),
        "iou_fixed": iou_curves[:, 50].mean().item(),
        "dice_best": dice_curves.amax(1).mean().item(),
        "iou_best": iou_curves.amax(1).mean().item(),
        "auroc": float(np.mean([auroc(labels[:, c], scores[:, c]) for c in range(len(findings))])),
    }
    lap("results")
    return numbers, dict(seconds)


def auroc(labels, scores):
    """Share of pairs of a positive and a negative that are in the right order; ties count half."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    difference = positive[:, None] - negative
    return ((difference > 0) + 0.5 * (difference == 0)).mean()
