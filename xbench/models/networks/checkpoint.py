"""Files of weights, read without running their code, and fitted to a network by name and shape."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from xbench.runtime.errors import UsageError, UserError

T = TypeVar("T", bound=nn.Module)


def locate(checkpoint: str | None, model: str, source: str) -> Path:
    """Return the path of a checkpoint that the user must supply; raise a UserError that names its source."""
    if not checkpoint:
        need = f"{model} needs the weights of its authors: give --model.checkpoint FILE."
        raise UsageError(f"{need} {source}")
    path = Path(checkpoint).expanduser()
    _check_file(path, source)
    return path


def read_tensors(path: Path, sections: Sequence[str] = ()) -> dict[str, Tensor]:
    """Read a file of weights from safetensors or torch.save; raise a UserError for anything else.

    Names lose the prefixes of parallel and compiled training (`module.`, `_orig_mod.`), and tensors the wrapping dict
    (`state_dict`, `model`). `sections` are the keys of several dicts in an official file; they become prefixes of the
    names (`image_encoder.conv1.weight`).
    """
    _check_file(path)
    content = _load(path, sections)
    found = [key for key in sections if isinstance(content, dict) and isinstance(content.get(key), dict)]
    # `model` alone is more likely the usual wrapper.
    if set(found) - {"model", "state_dict"}:
        content = {f"{key}.{_bare(str(name))}": tensor for key in found for name, tensor in content[key].items()}
    else:
        for wrapper in ("state_dict", "model"):
            if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
                content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise UserError(f"{path} has no state dict: names of tensors and the tensors, alone or under `state_dict`.")
    return {_bare(name): tensor for name, tensor in content.items()}


def read_network(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a network pickled as a whole, without its classes, or those of `read_tensors`."""
    _check_file(path)
    # Ignore warnings about classes whose source has changed.
    with warnings.catch_warnings(action="ignore"):
        content = None if path.suffix == ".safetensors" else _load(path, plain=False)
    return dict(_tensors_of(content)) if isinstance(content, _Inert) else read_tensors(path)


def _tensors_of(part: _Inert, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    parameters, buffers, children = (vars(part).get(kind, {}) for kind in ("_parameters", "_buffers", "_modules"))
    yield from ((prefix + name, one) for name, one in {**parameters, **buffers}.items() if isinstance(one, Tensor))
    for name, child in children.items():
        yield from _tensors_of(child, f"{prefix}{name}.")


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the settings under `config` that a training script stored with the weights; empty if there are none."""
    content = None if path.suffix == ".safetensors" else _load(path)
    settings = content.get("config") if isinstance(content, dict) else None
    return settings if isinstance(settings, dict) else {}


def read_remarks(path: Path) -> Mapping[str, str]:
    """Return what the command `convert` stored with the tensors; empty for any other file."""
    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def config_of(
    folder: Path, model: str, source: str, needed: Sequence[str] = (), name: str = "config.json", **allowed: Any
) -> dict[str, Any]:
    """Return the settings in a JSON file; raise a UserError if `needed` keys are absent or values are not `allowed`."""
    with explained(f"{folder} has no {name} of {model}", f"Fetch it again from {source}."):
        settings: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
        odd = {key: settings.get(key) for key, values in allowed.items() if settings.get(key) not in values}
        if odd or not settings.keys() >= {*needed}:
            raise ValueError(f"it has {odd}" if odd else f"it lacks {', '.join({*needed} - settings.keys())}")
    return settings


def undrawn(build: Callable[[], T]) -> T:
    """Build a network for `fill` without drawing random weights."""
    with torch.device("meta"):
        network = build()
    return network.to_empty(device="cpu")


def renamed(tensors: Mapping[str, Tensor], first_of: Mapping[str, str]) -> dict[str, Tensor]:
    """Replace beginnings of names by those in `first_of`; a tensor that already has the new name takes precedence."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        second = next((beginning for beginning in first_of if name.startswith(beginning)), None)
        if second is None:
            found[name] = tensor
        elif (first := first_of[second] + name.removeprefix(second)) not in tensors:
            found[first] = tensor
    return found


def without(tensors: Mapping[str, Tensor], *beginnings: str) -> dict[str, Tensor]:
    """Return the tensors whose names do not have these beginnings."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(beginnings)}


def fill(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    path: Path,
    model: str,
    ignored: Sequence[str] = (),
    advice: str = "",
) -> None:
    """Load weights into a network, exactly its names and shapes, and freeze it for inference.

    Missing counters of batch normalization become 0 and extra ones are dropped, because inference does not use them.
    Raises a UserError if the file does not fit, with counts, examples and the model that it resembles.

    Args:
        ignored: Patterns (`*` for anything) of names to drop from the file.
        advice: What to do about a misfit; by default to give the authors' file of this model.
    """
    wanted = network.state_dict()
    found = {}
    for name, tensor in tensors.items():
        if name in wanted:
            # Scalars are stored as (), (1,) or (1, 1), depending on the version that wrote them.
            lone = tensor.numel() == wanted[name].numel() == 1
            found[name] = tensor.reshape(wanted[name].shape) if lone else tensor
    absent = [name for name in wanted if name not in found]
    surplus = [name for name in tensors if name not in wanted]
    shapes = {name: (tuple(tensor.shape), tuple(wanted[name].shape)) for name, tensor in found.items()}
    misfits = {
        "missing": [name for name in absent if not fnmatchcase(name, _COUNTER)],
        "unexpected": [name for name in surplus if not any(fnmatchcase(name, one) for one in (*ignored, _COUNTER))],
        "of another shape": [f"{name} {own} instead of {size}" for name, (own, size) in shapes.items() if own != size],
    }
    if any(misfits.values()):
        listed = "; ".join(
            f"{len(names)} {kind} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
            for kind, names in misfits.items()
            if names
        )
        names = "".join(f"{name}\n" for name in tensors)
        like = (model for model, endings in _TELL_TALES if all(f"{ending}\n" in names for ending in endings))
        other = next(like, None)
        raise UserError(
            f"The weights in {path} do not fit {model}: {listed}, of {len(wanted)} tensors. "
            + (f"They look like those of {other}. " if other and other != model else "")
            + (advice or f"Give --model.checkpoint the file that the authors of {model} released.")
        )
    network.load_state_dict(found | {name: torch.zeros_like(wanted[name]) for name in absent})
    network.eval().requires_grad_(False)


@contextmanager
def explained(problem: str, advice: str) -> Iterator[None]:
    """Turn errors of libraries about missing or damaged files into a UserError: `problem (cause). advice`."""
    try:
        yield
    except _BROKEN as error:
        raise UserError(f"{problem} ({first_line(error)}). {advice}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


_BROKEN = (
    *(OSError, ValueError, RuntimeError, ImportError, LookupError, TypeError, AttributeError, AssertionError),
    *(EOFError, SafetensorError),
)
_COUNTER = "*num_batches_tracked"

# Endings of names that identify a released file, special ones first.
_TELL_TALES = (
    ("CARZero", ("fusion_module.mlp_head.0.weight",)),
    ("MedKLIP", ("res_features.0.weight", "disease_embedding_layer.weight")),
    ("MAVL", ("backbone.0.weight", "disease_embedding_layer.weight")),
    ("DeViDe", ("image_encoder.blocks.0.attn.qkv.weight",)),
    ("KAD", ("image_encoder.res_l1.weight",)),
    ("KAD", ("image_encoder.vit.patch_embedding.weight",)),
    ("KAD or DeViDe", ("decoder_norm.weight", "mlp_head.0.weight")),
    ("AFLoc", ("img_encoder.local2_embedder.weight",)),
    ("GLoRIA", ("img_encoder.local_embedder.weight",)),
    ("RadZero", ("transformer_layers.layer.0.norm1.weight",)),
    ("BioViL-T", ("encoder.backbone_to_vit.weight", "projector.model.0.weight")),
    ("BioViL", ("encoder.encoder.conv1.weight", "projector.model.0.weight")),
    ("the text model of BioViL", ("cls_projection_head.dense_to_hidden.weight",)),
    ("BiomedCLIP", ("visual.trunk.patch_embed.proj.weight", "text.transformer.embeddings.word_embeddings.weight")),
    ("a CLIP model of open_clip", ("visual.trunk.patch_embed.proj.weight",)),
    ("a CLIP model of open_clip", ("visual.conv1.weight",)),
    ("CXR-CLIP", ("image_projection.projection.weight",)),
    ("a SigLIP of transformers", ("vision_model.head.probe",)),
    ("a CLIP of transformers", ("vision_model.pre_layrnorm.weight",)),
    ("a BERT", ("embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight")),
    ("a vision transformer alone", ("blocks.0.attn.qkv.weight",)),
    ("a ResNet alone", ("layer1.0.conv1.weight",)),
)


def _bare(name: str) -> str:
    return re.sub(r"^((module|_orig_mod)\.)+", "", name)


def _check_file(path: Path, source: str = "") -> None:
    """Raise a UserError unless a path is a file; for a folder, list the files of weights in it."""
    if path.is_dir():
        suffixes = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
        inside = sorted(str(file) for pattern in ("*", "*/*") for file in path.glob(pattern) if file.suffix in suffixes)
        advice = f"Give a file in it: {', '.join(inside[:5])}." if inside else f"It contains no weights. {source}"
        raise UserError(f"--model.checkpoint {path} is a folder, not a file of weights. {advice}".rstrip())
    if not path.is_file():
        raise UserError(f"The file of weights {path} does not exist. Check --model.checkpoint. {source}".rstrip())


def _check_no_text(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"version https://git-lfs.github.com/"):
        raise UserError(f"{path} is a Git LFS pointer, not a file of weights: run `git lfs pull` in its folder.")
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml)", start, re.IGNORECASE):
        title = re.search(rb"<title[^>]*>\s*(.{1,100}?)\s*<", start, re.IGNORECASE | re.DOTALL)
        raise UserError(
            f"{path} is a web page, not a file of weights"
            + (f" (title {title[1].decode(errors='replace')!r})" if title else "")
            + ": file hosts send one in place of a large file. Open the link in a browser and download it again."
        )


def _load(path: Path, sections: Sequence[str] = (), plain: bool = True) -> Any:
    try:
        with explained(f"The file of weights {path} cannot be read", "Fetch it again."):
            _check_no_text(path)
            if path.suffix == ".safetensors":
                return load_file(path)
            zipped = zipfile.is_zipfile(path)
            if zipped:
                _check_archive(path)
            with torch.serialization.safe_globals(_STAND_INS):
                # Mapped, so that the optimizer's state, often twice as large as the weights, is never read.
                unpickler = {} if plain else {"pickle_module": _TENSORS_ALONE}
                return torch.load(path, map_location="cpu", weights_only=plain, mmap=zipped, **unpickler)
    except pickle.UnpicklingError as error:
        culprit = re.search(r"GLOBAL (\S+)", str(error))
        parts = list(dict.fromkeys((*sections, "model", "state_dict")))
        raise UserError(
            f"{path} is not a file of plain weights{f' (it contains a {culprit[1]})' if culprit else ''}, and it could "
            "run code when loaded. If you trust the file, save only its weights: torch.save({key: part "
            f"for key, part in torch.load(FILE, weights_only=False).items() if key in {parts}}}, NEW_FILE)."
        ) from error


def _check_archive(path: Path) -> None:
    """Raise a UserError for a program, and for an archive that would unpack to many times its size."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > 4 * path.stat().st_size + 2**20:
        raise UserError(
            f"{path} has {path.stat().st_size:,} bytes and would unpack to {unpacked:,}. Fetch it again from its "
            "authors."
        )
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise UserError(
            f"{path} is a TorchScript archive, like OpenAI's CLIP: a program, which is not run here. Omit "
            "--model.checkpoint if plain weights can be downloaded. If you trust the file, save only its weights: "
            "torch.save(torch.jit.load(FILE, map_location='cpu').state_dict(), NEW_FILE)."
        )


class _Inert:
    """Replaces other objects of a checkpoint: keeps attributes, runs nothing."""

    dump_patches = False  # torch.load reads it for files from before PyTorch 1.6

    def __new__(cls, *args: object) -> Any:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


class _InertMapping:
    """Replaces classes of dicts, which torch fills entry by entry only for a few classes."""

    def __new__(cls, *args: object) -> Any:
        return OrderedDict()


# Classes that the authors' files hold next to the weights: settings, scores, paths.
_VALUES = """
builtins.bool builtins.float builtins.int builtins.list builtins.object builtins.str builtins.tuple
typing.Any argparse.Namespace
pathlib.Path pathlib.PosixPath pathlib.PurePosixPath pathlib.WindowsPath pathlib.PureWindowsPath
pathlib._local.Path pathlib._local.PosixPath pathlib._local.PurePosixPath pathlib._local.WindowsPath
numpy.dtype numpy.ndarray numpy.core.multiarray.scalar numpy.core.multiarray._reconstruct
numpy._core.multiarray.scalar numpy._core.multiarray._reconstruct
omegaconf.dictconfig.DictConfig omegaconf.listconfig.ListConfig
omegaconf.base.Metadata omegaconf.base.ContainerMetadata
omegaconf.nodes.AnyNode omegaconf.nodes.BooleanNode omegaconf.nodes.FloatNode omegaconf.nodes.IntegerNode
omegaconf.nodes.StringNode omegaconf.nodes.PathNode
pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint
pytorch_lightning.callbacks.early_stopping.EarlyStopping
"""
_MAPPINGS = "builtins.dict collections.defaultdict pytorch_lightning.utilities.parsing.AttributeDict"

_STAND_INS: list[Any] = [
    type(name.rpartition(".")[2], (base,), {"__module__": name.rpartition(".")[0]})
    for base, names in ((_Inert, _VALUES), (_InertMapping, _MAPPINGS))
    for name in names.split()
]


class _TensorsAlone(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        rebuilding = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
        if (module, name) == ("collections", "OrderedDict") or (module == "torch._utils" and name in rebuilding):
            return super().find_class(module, name)
        return _Inert


_TENSORS_ALONE: Any = SimpleNamespace(
    __name__="tensors", Unpickler=_TensorsAlone, load=lambda file, **options: _TensorsAlone(file, **options).load()
)
