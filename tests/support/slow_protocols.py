"""Numbers of protocols from their pairs, derived by other code than the product's: the slow form of what is stored."""

from __future__ import annotations

import numpy as np

from xbench.scoring.protocols.calibration import expected_ece
from xbench.scoring.protocols.chexlocalize import otsu_mask

RATIOS = {
    "lesion_recall": ("found", "lesions"),
    **{f"recall_{size}": (f"found_{size}", f"lesions_{size}") for size in ("small", "medium", "large")},
    "false_parts": ("false", "images"),
    "precision": ("overlap_otsu", "mask_otsu"),
    "recall": ("overlap_otsu", "region"),
    "specificity": ("clear_otsu", "outside"),
}
OF_NEGATIVES = {("radzero", "specificity"), ("alarms", "false_alarm"), ("alarms", "area_lit")}
RATES = 2.0 ** np.arange(-3, 4)


def scaled(saliency):
    above = saliency - saliency.min()
    return above / above.max() if above.max() > 0 else above


def slow_counts(saliency, region):
    """What the protocol `chexlocalize` counts of a map on the grid, mask by mask."""
    scale = scaled(saliency)
    masks = {f"0.{k}": scale > np.float32(f"0.{k}") for k in range(2, 9)}
    counts = {"pixels": region.size, "region": int(region.sum())}
    for rule, mask in {"otsu": otsu_mask((255 * scale).astype(np.uint8)), **masks}.items():
        counts |= {f"mask_{rule}": int(mask.sum()), f"overlap_{rule}": int((mask & region).sum())}
    return counts | {"hit": float(region.flat[saliency.argmax()]) if region.any() else np.nan}


def slow_numbers(content, pairs, findings):
    name, column = content["protocol"], pairs["column"]
    groups = [{key: values[column == c] for key, values in pairs.items()} for c in range(len(findings))]
    numbers = {}
    for key, entry in content["numbers"].items():
        average, missing, first = entry["average"], 0, []
        if average in ("findings", "pairs", "squares"):
            values = pairs[key].astype(np.float64)
            lacking = np.isnan(values) & (pairs["label"] == 0 if (name, key) in OF_NEGATIVES else pairs["chance"] > 0)
            split = [
                [part[column == c] for c in range(len(findings))] for part in (values, np.where(lacking, 0, values))
            ]
            each = [float(np.nanmean(one)) if (~np.isnan(one)).any() else None for one in split[0]]
            value, strict = (weighted(part, average) for part in split)
            missing = int(lacking.sum())
            places = np.flatnonzero(lacking)[:10]
            first = [{"image_id": pairs["image_id"][k], "finding": findings[column[k]]} for k in places]
        else:
            of = {"sums": ratio, "images": together}.get(average, pooled)
            each = [of(name, key, group) for group in groups]
            known = [one for one in each if one is not None]
            macro = float(np.mean(known)) if known else None
            value = strict = macro if average in ("sums", "images") else pooled(name, key, pairs)
        numbers[key] = {"value": value, "average": average, "undefined": missing, "first_undefined": first}
        numbers[key] |= {"strict": strict, "per_finding": dict(zip(findings, each, strict=True))}
    return numbers


def weighted(groups, average):
    """Mean of findings' values, each finding once, by the number of its pairs, or by the square of that."""
    defined = [group[~np.isnan(group)] for group in groups if not np.isnan(group).all()]
    power = {"findings": 0, "pairs": 1, "squares": 2}[average]
    weights = [float(len(group)) ** power for group in defined]
    return float(np.average([group.mean() for group in defined], weights=weights)) if defined else None


def ratio(_, key, pairs):
    above, below = (pairs[part].sum() for part in RATIOS[key])
    return float(above / below) if below else None


def pooled(name, key, pairs):
    if name == "radvlm":
        boxes = float(pairs["iou_pairs"].sum())
        return float(pairs["iou_sum"].sum() / boxes) if boxes else None
    unions = (pairs["mask"] - pairs["overlap"]).sum(0) + pairs["region"].sum()
    if not len(pairs["region"]) or (unions == 0).any():
        return None
    ious = pairs["overlap"].sum(0) / unions
    return float(ious.mean() if key == "mask_miou" else ious.max())


def together(name, key, pairs):
    return (calibration_of if name == "calibration" else detections_of)(pairs)[key]


def slow_columns(content, pairs, findings):
    name, column, found = content["protocol"], pairs["column"], {}
    tuned = content["tuned"] or {}
    if name == "radzero":
        dice, specific = (np.full(len(column), np.nan) for _ in range(2))
        for c in range(len(findings)):
            mine = (column == c) & (pairs["label"] == 1) & (pairs["region"] > 0)
            if not mine.any():
                continue
            each = 2 * pairs["overlap"][mine] / (pairs["mask"][mine] + pairs["region"][mine, None])
            best = int(np.flatnonzero(each.mean(0) > each.mean(0).max() - 1e-12)[0])
            dice[mine] = each[:, best]
            absent = (column == c) & (pairs["label"] == 0)
            specific[absent] = pairs["highest"][absent] <= np.float32(best / 100)
        found = {"dice": dice, "specificity": specific}
    if name == "alarms":
        places = [tuned.get(finding, {}).get("threshold", 50) for finding in findings]
        limit = np.array([np.nan if place is None else place for place in places], np.float64)[column]
        known, rows = ~np.isnan(limit), np.arange(len(column))
        mask, overlap = (pairs[part][rows, np.nan_to_num(limit).astype(int)] for part in ("mask", "overlap"))
        absent, drawn = (np.where(part & known, 1, np.nan) for part in (pairs["label"] == 0, pairs["region"] > 0))
        dice = 2 * overlap / np.maximum(mask + pairs["region"], 1)
        found = {"false_alarm": absent * (mask > 0), "area_lit": absent * mask / pairs["pixels"]}
        found |= {"dice": drawn * dice, "hit": drawn * (overlap > 0)}
    if name == "chexlocalize":
        rules = np.array([str((tuned.get(finding) or {}).get("threshold")) for finding in findings])[column]
        cutoffs = np.array([(tuned.get(finding) or {}).get("cutoff") for finding in findings], np.float64)[column]
        for key in (key for key in pairs if key.startswith("iou")):
            mask, overlap = pairs["mask_otsu"].astype(np.float64), pairs["overlap_otsu"].astype(np.float64)
            if "tuned" in key:
                mask, overlap = np.full(len(column), np.nan), np.full(len(column), np.nan)
                for rule in {*rules} - {"None"}:
                    mask[rules == rule] = pairs[f"mask_{rule}"][rules == rule]
                    overlap[rules == rule] = pairs[f"overlap_{rule}"][rules == rule]
            if "cutoff" in key:
                low = pairs["probability"] < cutoffs
                mask, overlap = (np.where(low, part * 0, part) for part in (mask, overlap))
                mask = np.where(np.isnan(cutoffs), np.nan, mask)
            union = mask + pairs["region"] - overlap
            left_out = union == 0 if key.endswith("_full") else (mask == 0) | (pairs["region"] == 0)
            found[key] = np.where(left_out, np.nan, overlap / np.where(union == 0, 1, union))
        found["outside"] = pairs["pixels"] - pairs["region"]
        found["clear_otsu"] = pairs["pixels"] - (pairs["mask_otsu"] + pairs["region"] - pairs["overlap_otsu"])
    return found


def calibration_of(pairs):
    p, y = pairs["probability"].astype(np.float64), pairs["label"].astype(np.float64)
    names = ("ece", "ece_adaptive", "ece_by_chance", "mce", "brier")
    if not len(p):
        return dict.fromkeys(names)
    edges = np.array([-1, *(k / 15 for k in range(1, 15)), 1])
    inside = (p[None] > edges[:-1, None]) & (p[None] <= edges[1:, None])
    gaps = np.abs(np.where(inside, p - y, 0).sum(axis=1))
    filled = inside.any(axis=1)
    adaptive, begin, ordered = 0.0, 0, np.sort(p)
    for k in range(1, 16):
        # The bin ends with the last of equal probabilities.
        last = ordered[int(np.ceil(len(p) * k / 15)) - 1]
        end = int((p <= last).sum())
        if end > begin:
            low = ordered[begin - 1] if begin else -1
            adaptive += abs(float((p - y)[(p > low) & (p <= last)].sum()))
            begin = end
    values = (
        gaps.sum() / len(p),
        adaptive / len(p),
        expected_ece(p),
        (gaps[filled] / inside[filled].sum(axis=1)).max(),
        np.square(p - y).mean(),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def detections_of(pairs):
    images, lesions = len(pairs["lesions"]), int(pairs["lesions"].sum())
    sizes = ("small", "medium", "large")
    names = ("froc", "sensitivity", "map", "ap_30", "ap_50", *(f"sensitivity_{size}" for size in sizes))
    if not lesions:
        return dict.fromkeys(names)
    scores = np.array([score for one in pairs["scores"] for score in one], np.float64)
    hits = {
        percent: np.array([hit for one in pairs[f"hits_{percent}"] for hit in one], bool)
        for percent in (10, 20, 30, 40, 50)
    }
    true, false = (np.sort(scores[which]) for which in (hits[30], ~hits[30]))
    levels = np.unique(scores)
    found, wrong = (len(one) - np.searchsorted(one, levels) for one in (true, false))
    at = [found[wrong <= rate * images].max(initial=0) / lesions for rate in RATES]
    precisions = {percent: _precision(scores, hit, lesions) for percent, hit in hits.items()}
    values = {
        "froc": float(np.mean(at)),
        "sensitivity": float(at[3]),
        "map": float(np.mean([*precisions.values()])),
        "ap_30": precisions[30],
        "ap_50": precisions[50],
    }
    allowed = levels[wrong <= images]
    counted = scores >= allowed[0] if len(allowed) else np.zeros(len(scores), bool)
    which = np.array([size for one in pairs["sizes"] for size in one], int)
    by_size = {}
    for place, size in enumerate(sizes):
        every = int(pairs[f"lesions_{size}"].sum())
        by_size[f"sensitivity_{size}"] = int((counted & (which == place)).sum()) / every if every else None
    return values | by_size


def _precision(scores, hits, lesions):
    best = np.zeros(101)
    found = 0
    for rank, place in enumerate(np.argsort(-scores, kind="stable"), 1):
        found += int(hits[place])
        reached = np.linspace(0, 1, 101) <= found / lesions
        best[reached] = np.maximum(best[reached], found / rank)
    return float(best.mean())
