"""Fingerprints: what the numbers of a run depend on, in comparable form.

`--resume` continues an unfinished run with the same fingerprint, and `bench` skips a finished one. `outputs_depend_on`
is the part that determines predictions; its digest also names cached answers of servers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import xbench
from xbench.runtime.digests import digest, file_sha256, files_sha256, source_sha256

if TYPE_CHECKING:
    from xbench.data.datamodule import ChestXrayDataModule
    from xbench.models.base import SaliencyModel

IMAGE_PACKAGES: tuple[str, ...] = ("albumentations", "albucore", "opencv-python-headless", "pydicom", "pylibjpeg")
IMAGE_PACKAGES += ("pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pycocotools", "pillow", "numpy")
"""Packages that turn files into model input."""
_PACKAGES = ("torch", "torchvision", "lightning", "torchmetrics", "open_clip_torch", "timm", "transformers")
# Options that move no number, including those of Lightning's trainer, which cannot declare them.
_NEUTRAL = frozenset({"config", "oversubscribe", "resume"})
_NEUTRAL_IN_TRAINER = frozenset(
    {"default_root_dir", "devices", "enable_model_summary", "enable_progress_bar", "logger", "num_nodes"}
)


def fingerprint(config: Mapping[str, Any], model: type[SaliencyModel], data: ChestXrayDataModule) -> dict[str, Any]:
    """Describe what the numbers of a run depend on, as nested plain values for JSON.

    These are options that may move a number, versions and code, and digests of annotations and of every file that an
    option names. Classes of models and datasets declare the other options as
    `neutral_options`. `config` is the resolved configuration; `data` must be set up.
    """
    settings = _settings(config, model, type(data))
    content = {
        "settings": settings,
        "accelerator": _accelerator(settings["trainer"].get("accelerator", "auto")),
        "files": dict(_digests(settings["model"], "model", of_model=True)) | dict(_digests(settings["data"], "data")),
        "annotations": annotation_digests(data.annotation_files()),
        "images": {"count": len(data.records), "names": names_digest(record.image_id for record in data.records)},
        "versions": versions(),
        "source_sha256": source_sha256(model, type(data)),
    }
    described: dict[str, Any] = json.loads(json.dumps(content, default=str))
    return described


def of_results(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fingerprint without the accelerator, which may differ, and paths: a digest replaces the settings."""
    kept = {name: value for name, value in content.items() if name != "accelerator"}
    return kept | {"settings": digest(content["settings"])}


def own_options(config: Mapping[str, Any], model: type[SaliencyModel]) -> dict[str, Any]:
    """Return the model's options that may move a number; `X_sha256` replaces an option X that names a file."""
    options = _arguments(config["model"], model)
    files = {place: sha for name in options for place, sha in _digests(options[name], name, of_model=True)}
    return {name: plain(value) for name, value in options.items() if name not in files} | {
        f"{place}_sha256": sha for place, sha in files.items()
    }


def outputs_depend_on(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the provenance that, with the images, determines logits and maps."""
    return {key: provenance[key] for key in ("model", "checkpoint_sha256", "prompts", "preprocessing", "precision")}


def names_digest(names: Iterable[str]) -> str:
    """Return the SHA-256 of image names in order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value for JSON, equal in every process; other objects become the name of their type."""
    if isinstance(value, Mapping):
        return {utf8(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (str, float, Path, np.generic, Enum)):
        return utf8(str(value))
    return f"{type(value).__module__}.{type(value).__qualname__}"


def utf8(text: str) -> str:
    """Return a text for UTF-8 files, with escapes for undecodable bytes in paths."""
    return text.encode("utf-8", "backslashreplace").decode()


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two fingerprints with the same settings."""
    said = []
    for part in ("versions", "files", "annotations"):
        then, today = before.get(part) or {}, now[part]
        names = [name for name in {**then, **today} if then.get(name) != today.get(name)]
        said += [f"{name} {then.get(name)} is now {today.get(name)}" if part == "versions" else name for name in names]
    if (images := before.get("images") or {}) != now["images"]:
        said.append(f"{images.get('count')} images are now {now['images']['count']}, or have other names")
    if before.get("source_sha256") != now["source_sha256"]:
        said.append("the code of xbench or of the user's classes")
    return said


def difference(one: Any, other: Any, place: str = "") -> str | None:
    """Describe the first difference between two nested plain values; None if equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            found = difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
            if found:
                return found
        return None
    if one == other:
        return None
    said = [text if len(text := json.dumps(value)) <= 80 else f"{text[:77]}..." for value in (one, other)]
    return f"{place} is {said[1]} and was {said[0]}"


def annotation_digests(files: Sequence[Path]) -> dict[str, str]:
    """Return digests of annotation files by name, or by relative path where names repeat."""
    names = [path.name for path in files]
    if len({*names}) < len({*files}):
        folder = os.path.commonpath([path.absolute().parent for path in files])
        names = [os.path.relpath(path.absolute(), folder) for path in files]
    return {name: file_sha256(path) for name, path in zip(names, files, strict=True)}


def versions() -> dict[str, str]:
    """Return the versions of xbench, Python and packages that numbers depend on."""
    packages = package_versions((*_PACKAGES, *IMAGE_PACKAGES))
    return {"xbench": xbench.__version__, "python": platform.python_version(), **packages}


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def _settings(config: Mapping[str, Any], model: type[SaliencyModel], data: type[ChestXrayDataModule]) -> dict[str, Any]:
    def without(options: Mapping[str, Any] | None, neutral: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in (options or {}).items() if name not in neutral}

    counted = without(config, _NEUTRAL) | {"trainer": without(config.get("trainer"), _NEUTRAL_IN_TRAINER)}
    # These only distribute images; others, such as FSDP, can change the precision of the model.
    if str(counted["trainer"].get("strategy")).partition("_")[0] in ("ddp", "single"):
        counted["trainer"]["strategy"] = "auto"
    for part, owner in (("model", model), ("data", data)):
        chosen = config.get(part)
        if isinstance(chosen, Mapping):
            chosen = {"class": chosen.get("class_path"), **_arguments(chosen, owner)}
        counted[part] = chosen
    return counted


def _arguments(part: Mapping[str, Any], owner: type[SaliencyModel | ChestXrayDataModule]) -> dict[str, Any]:
    given = {**(part.get("init_args") or {}), **(part.get("dict_kwargs") or {})}
    return {name: value for name, value in given.items() if name not in owner.neutral_options}


def _accelerator(option: Any) -> Any:
    if option not in ("auto", "gpu"):
        return option
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _digests(value: Any, option: str, of_model: bool = False) -> Iterator[tuple[str, str]]:
    """Yield options that name files with digests of their content; for models, also folders and lists."""
    if isinstance(value, Mapping) or (of_model and isinstance(value, list | tuple)):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _digests(inner, f"{option}.{name}", of_model)
    elif isinstance(value, str | os.PathLike) and 0 < len(text := os.fspath(value)) < 4096:
        path = Path(os.path.expanduser(text.removeprefix("local-dir:")))
        if os.path.isfile(path):
            yield option, file_sha256(path)
        elif of_model and os.path.isdir(path):
            yield option, files_sha256(path, path.rglob("*"))
