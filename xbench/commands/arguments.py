"""What each command takes, and its help, on one screen; imports neither torch nor Lightning, so help comes at once.

`test`, `predict`, `prepare` and `check` build a model, and have the options of its class as well: see
`commands/options.py`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from xbench.commands.configs import did_you_mean
from xbench.commands.look import look
from xbench.runtime.errors import UserError
from xbench.runtime.processes import usable_cores
from xbench.runtime.strict import unique_keys

KINDS = ("models", "datasets", "findings", "configs", "benches")
"""What `list` prints."""

USUAL_WORKERS = 16
"""Processes that `rescore` starts at most where it is not told how many."""

USUAL_CASES = 24
"""Pictured cases of each dataset in a report."""


class _Wide(argparse.HelpFormatter):
    """Help with an option and its text on one line where they fit; examples keep their lines."""

    def __init__(self, prog: str, column: int) -> None:
        super().__init__(prog, max_help_position=column, width=100)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """Parser of a command, and its help, whose texts begin in `column`; `kwargs` are those of `ArgumentParser`."""

    def __init__(self, command: str, column: int = 30, **kwargs: Any) -> None:
        super().__init__(prog=f"xbench {command}", formatter_class=lambda prog: _Wide(prog, column), **kwargs)
        self._command = command

    def add_switch(self, option: str, text: str, default: str = "false") -> None:
        """Add an option that is `true` or `false`, and `true` where it stands alone."""
        self.add_argument(option, nargs="?", const="true", choices=("true", "false"), default=default, help=text)

    # Untyped in argparse as well.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; a switch takes the word behind it if that is `true` or `false`, and no other."""
        words, switches = args or [], [one for one in self._actions if one.option_strings and one.nargs == "?"]
        bare = {option for one in switches for option in one.option_strings}
        pairs = zip(words, [*words[1:], ""], strict=False)
        spelled = [f"{word}=true" if word in bare and after not in ("true", "false") else word for word, after in pairs]
        return super().parse_known_args(spelled, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the options as a `UserError`."""
        near = ""
        if choice := re.search(r"invalid choice: '(.+?)' \(choose from (.+)\)", message):
            near = did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        elif option := re.search(r"unrecognized arguments: (--[\w-]+)|^(--[\w-]+) is no option", message):
            near = did_you_mean(option[1] or option[2], self._option_string_actions)
        raise UserError(f"{self._command}: {message}.{near} See {self.prog} --help.", exit_status=2)


PURPOSES = {
    "test": "Evaluate a model on a dataset.",
    "predict": "Write scores, maps and pictures, without annotations, for a dataset or any folder (MODEL_folder).",
    "prepare": "Decode and resize a dataset once, into a cache that test and predict read.",
    "check": "Validate files, annotations, checkpoint and versions without running the model.",
}


class _Option(NamedTuple):
    name: str
    value: str
    text: str
    commands: str = "test predict prepare check"
    # What a shell completes it to, where the value does not say so itself.
    choices: str = ""


_SCORING, _RUNNING = "test", "test predict"

OPTIONS = {
    "What to run": [
        _Option("config", "NAME|FILE", "demo, clip_siim, any MODEL_DATASET or file; may be repeated"),
        _Option("model.checkpoint", "FILE", "weights, where the model does not fetch its own"),
        _Option(
            "model.prompts",
            "STYLE|FILE",
            "name, phrase, description, aspects, or a JSON or YAML file",
            choices="name phrase description aspects",
        ),
    ],
    "Data": [
        _Option("data.root", "FOLDER", "where the dataset lies, as it was downloaded"),
        _Option("data.split", "NAME", "another split than the dataset's own"),
        _Option("data.limit", "N", "the first N images only"),
        _Option("data.on_error", "stop|skip", "what an unreadable image does (stop)"),
        _Option("data.cache", "true|false|FOLDER", "prepared images: read them, do not, or where they lie (true)"),
    ],
    "Scoring": [
        _Option("data.grid", "N|native", "side of the grid that everything is scored on (224)", _SCORING),
        _Option("data.gamma", "SHARE", "share of a grid pixel that an annotation must cover (0.5)", _SCORING),
    ],
    "The machine": [
        _Option("data.batch_size", "N", "images in a batch (8)"),
        _Option("data.num_workers", "N", "processes that load images (as many as cores, at most 4)"),
        _Option("trainer.accelerator", "auto|cpu|gpu", "where the model runs (auto)", _RUNNING),
        _Option("trainer.devices", "N|auto", "how many GPUs; on a CPU, how many processes (auto)", _RUNNING),
        _Option(
            "trainer.precision",
            "PRECISION",
            "32-true, bf16-mixed, 16-mixed, bf16-true, ... (32-true)",
            _RUNNING,
            "32-true bf16-mixed 16-mixed bf16-true 16-true",
        ),
    ],
    "Results": [
        _Option("trainer.default_root_dir", "FOLDER", "where runs go (runs)"),
        _Option("overlays", "FINDINGS|false", "draw the maps of these findings, or none (true: all)", "predict"),
        _Option("trainer.logger", "false", "without Weights & Biases", _SCORING),
        _Option("resume", "true", "go on with the newest unfinished run of this pair", _SCORING),
    ],
}
"""The options by what they are about, without the two hyphens."""

_MORE = """
Any other argument of the model, the data and Lightning's Trainer: --model.X, --data.X, --trainer.X
  xbench {0} --help-all                          all of them, several screens
  xbench {0} --model.help xbench.models.CLIP     those of a model; --data.help of a dataset
  xbench {0} --config demo --print_config        what each is set to
"""


def run_help(command: str) -> CommandParser:
    """Return a parser that has the usual options of a command that builds a model, for help and completion alone."""
    parser = CommandParser(
        command,
        column=39,
        usage=f"xbench {command} --config NAME|FILE [options]",
        description=PURPOSES[command],
        epilog=_MORE.format(command),
        add_help=False,
    )
    for title, options in OPTIONS.items():
        if shown := [option for option in options if command in option.commands.split()]:
            group = parser.add_argument_group(title)
            for option in shown:
                choices = option.choices.split() or [word for word in option.value.split("|") if word.islower()]
                group.add_argument(f"--{option.name}", metavar=option.value, choices=choices, help=option.text)
    return parser


_CONVERTS = """
examples; options are those that `test` takes with this checkpoint, and `convert MODEL --help` shows them:
  convert carzero CARZero_best_model.ckpt carzero.safetensors
  convert clip open_clip_pytorch_model.bin clip.safetensors --model.architecture ViT-L-14-quickgelu
  convert devide mine.pt devide.safetensors --model.key_map '{"vit.": "image_encoder."}'
"""


def convert_parser() -> CommandParser:
    """Return the parser of the help of `convert`, whose options are those of a model."""
    parser = CommandParser(
        "convert",
        usage="xbench convert MODEL CHECKPOINT OUT.safetensors [--model.X value ...]",
        description="Loads a checkpoint into its model, strictly, and writes the tensors alone, under the same names.",
        epilog=_CONVERTS,
    )
    names = convertible()
    parser.add_argument("model", metavar="MODEL", choices=names, help=", ".join(names))
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="file of weights as its authors published it")
    parser.add_argument("out", metavar="OUT.safetensors", help="file to write")
    return parser


def completion_parser() -> CommandParser:
    """Return the parser of `completion`."""
    use = 'In ~/.bashrc: eval "$(xbench completion bash)"; in ~/.zshrc the same with zsh, after compinit.'
    parser = CommandParser("completion", description="Prints what a shell needs for the Tab key.", epilog=use)
    parser.add_argument("shell", choices=("bash", "zsh"))
    return parser


def convertible() -> list[str]:
    """Return the names of the shipped models whose checkpoints can be converted."""
    return ["biomedclip", "carzero", "clip", "devide", "kad", "mavl", "medklip"]


def check_convertible(name: str) -> None:
    """Refuse a model that is not shipped, or has no checkpoint, with a `UserError`."""
    known = convertible()
    if name not in known:
        raise UserError(
            f"convert {name}: there is no such model, or it has no checkpoint.{did_you_mean(name, known)} Those that "
            f"have: {', '.join(known)}.",
            exit_status=2,
        )


_BENCHES = """
examples:
  bench --config demo                           drawn radiographs, no download, in minutes
  bench                                         the paper: $XBENCH_DATA and $XBENCH_WEIGHTS
  bench --config mine.yaml --models clip kad    what mine.yaml says, two models of it
  bench --config mine.yaml --config resolution  the same, and once more at 448 pixels
  bench --config mine.yaml --data.batch_size 32 --trainer.precision bf16-mixed

mine.yaml, for example:
  models: {clip: {}, carzero: {checkpoint: /models/carzero.safetensors}}
  datasets: {vindr: {root: /data/vindr}}
  trainer: {precision: bf16-mixed}
  variants: {by_name: {model: {prompts: name}}}

A run is skipped if it is finished and would come out the same: same configuration but for what
moves no number, same code and versions, checkpoint, annotation files and images by name. What was
stopped, by Ctrl-C or otherwise, goes on where it was.
"""


def verify_parser() -> CommandParser:
    """Return the parser of `verify`."""
    parser = CommandParser(
        "verify",
        description="Recomputes every number of a run from its tables and names each that differs; the exit status is "
        "1 then.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run: runs/MODEL_DATASET/TIME")
    parser.add_argument("--deep", action="store_true", help="measure the stored predictions again, too")
    return parser


def reproduce_parser() -> CommandParser:
    """Return the parser of `reproduce`."""
    parser = CommandParser(
        "reproduce",
        description="Runs a stored result's configuration again, in a fresh process, and prints how far each number is "
        "from the stored one and what differs between the two runs.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run")
    parser.add_argument("--out", type=Path, help="keep the new run there; otherwise it is deleted after comparison")
    return parser


class _Protocols:
    """Names that `--protocol` takes, loaded when one is given or help is shown."""

    def __iter__(self) -> Iterator[str]:
        from xbench.scoring.protocols import PROTOCOLS

        return iter((*PROTOCOLS, "all"))

    def __contains__(self, name: object) -> bool:
        return name in [*self]


def rescore_parser() -> CommandParser:
    """Return the parser of `rescore`."""
    parser = CommandParser(
        "rescore",
        description="Scores a finished run again by other rules, without the model and without the dataset, from the "
        "maps and regions that it kept. What is not given stays as it was. The evaluation grid cannot change.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run")
    parser.add_argument("--thresholds", type=int, help="number of thresholds from 0 to 1; odd")
    tied = "what counts when several pixels share the maximum of a map"
    parser.add_argument("--ties", choices=("share", "any", "first"), help=tied)
    parser.add_argument("--gamma", type=float, help="share of a grid pixel that an annotation must cover, in (0, 1]")
    read = "read what the model answered as %s; only of models that answer, which are not asked again"
    parser.add_argument("--family", metavar="NAME", help=read % "models of this family do")
    parser.add_argument("--frame", metavar="NAME", help=read % "numbers in this frame")
    named = "score only the images that this text file names, one a line"
    parser.add_argument("--images", type=Path, metavar="FILE", help=named)
    parser.add_argument(
        "--protocol",
        action="append",
        default=[],
        choices=_Protocols(),
        metavar="NAME",
        help="score predictions as others do: %(choices)s that fit; may be given several times. Adds "
        "files to RUN, unless other rules make a new run",
    )
    tuned = (
        "finished run on another split, on which protocols that need thresholds choose them; or the CSV files that "
        "CheXlocalize's authors tuned"
    )
    parser.add_argument("--tune", type=Path, nargs="+", metavar="RUN", help=tuned)
    number = f"processes that score, by default as many as cores, {USUAL_WORKERS} at most; 0: only this one"
    parser.add_argument("--workers", type=int, metavar="N", help=number, default=min(USUAL_WORKERS, usable_cores()))
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder for the results; by default beside RUN")
    return parser


_SCORES = """
examples:
  score --config phantom --predictions runs/demo_phantom/TIME --name demo   # what predict wrote
  score --config siim --data.root /data/siim --predictions maps.zip --name mine \\
        --frame shortest:512,crop:480 --scores scores.csv

maps/IMAGE/FINDING.npy (npz, png, tif) is the map of an image and a finding; scores.csv has the
columns image, finding, probability, or image and a column for each finding. Boxes: a CSV file of
image, finding, x0, y0, x1, y1, score; COCO results; lines of JSON, raw answers too. Refused, unless
asked: predictions that are missing, of other images or findings, or of another size. Options of the
data and the trainer are those of `xbench test`: --data.root, --data.limit, --resume true, ...
"""


def _names(text: str) -> dict[str, str]:
    try:
        names = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(
            f"score --names {text:.60}: give what the files call a finding, and its name, as JSON such as "
            """'{"pl_eff": "Pleural Effusion"}'.""",
            exit_status=2,
        )
    return names


def score_parser() -> CommandParser:
    """Return the parser of `score`."""
    parser = CommandParser(
        "score",
        description="Scores predictions that were made elsewhere, and makes a full run of them, without a model.",
        epilog=_SCORES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-c", "--config", action="append", required=True, metavar="DATASET|FILE", help="a shipped dataset, or a file"
    )
    parser.add_argument(
        "--predictions", required=True, metavar="PATH", help="what predict wrote; folder, zip or tar; csv, json, jsonl"
    )
    parser.add_argument("--name", required=True, help="what results and folders call the model")
    frame = "what a map shows: whole, or steps such as shortest:512,crop:480 (stretch, shortest, longest, pad, crop)"
    parser.add_argument("--frame", help=f"{frame}; for boxes fraction_whole, pixels_sent, ...")
    parser.add_argument("--family", help="how raw answers are written, such as medgemma")
    table = (
        "CSV or parquet file of probabilities; none: nothing is said of recognition; pickled: those in the maps' pkl"
    )
    parser.add_argument("--scores", metavar="TABLE|none|pickled", help=table)
    pattern = "path of a map without its ending (default {image}/{finding}); {image}: an npz file of all findings"
    parser.add_argument("--pattern", help=pattern)
    example = '\'{"pl_eff": "Pleural Effusion"}\''
    parser.add_argument("--names", metavar="JSON", type=_names, help=f"what the files call findings: {example}")
    missing = "without a prediction: stop, skip the image, or count the map as a miss with flat (default stop)"
    parser.add_argument("--missing", choices=("stop", "skip", "flat"), help=missing)
    extra = "predictions of no image or finding of the dataset (default stop)"
    parser.add_argument("--extra", choices=("stop", "ignore"), help=extra)
    sizes = "maps of one size, or of any, an image at a time (default same)"
    parser.add_argument("--sizes", choices=("same", "any"), help=sizes)
    enlarged = "how maps are enlarged (default bilinear)"
    parser.add_argument("--upsampling", choices=("bilinear", "nearest", "corners"), help=enlarged)
    scale = "what the values of maps are (default none: maps of different images are not compared)"
    parser.add_argument("--map-scale", choices=("cosine", "logit", "probability", "attention", "none"), help=scale)
    return parser


def report_parser() -> CommandParser:
    """Return the parser of `report`."""
    parser = CommandParser(
        "report",
        description="Writes tables, figures and one page from finished runs: index.html, report.md, tables/, figures/, "
        "analysis.json.",
    )
    parser.add_argument("runs", metavar="RUNS", nargs="+", type=Path, help="folders with finished runs, at any depth")
    parser.add_argument("--out", type=Path, help="folder of the report; RUNS/report of the first RUNS by default")
    parser.add_argument("--seed", type=int, default=0, help="of the exchanges in paired tests (default 0)")
    cases = f"pictured cases of each dataset on the page (default {USUAL_CASES})"
    parser.add_argument("--cases", type=int, default=USUAL_CASES, help=cases)
    card = "write cards/MODEL.md as well: each model's results as hubs of models read them, to paste into its card"
    parser.add_switch("--card", card)
    parser.add_switch("--wandb", "log the report to Weights & Biases as well, without its pictures of patients")
    parser.add_switch("--wandb-pictures", "log the pictures of patients too")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def bench_parser() -> CommandParser:
    """Return the parser of `bench`."""
    parser = CommandParser(
        "bench",
        description="Runs models on datasets, each pair in a fresh process; goes on after a failure, "
        "skips what is finished and unchanged, and ends with the report.",
        epilog=_BENCHES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME_OR_PATH",
        help="what to run, by default the paper: a file, or a name of `list benches`; may be repeated, the "
        "later over the earlier",
    )
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="these models alone")
    parser.add_argument("--datasets", nargs="+", default=[], metavar="NAME", help="these datasets alone")
    parser.add_argument("--out", metavar="DIR", help="where runs go (default: runs)")
    at_once = "runs at once, each on GPUs of its own if there are any, and on cores of its own (default: 1)"
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help=at_once)
    parser.add_argument(
        "--part", metavar="K/N", help="every Nth run from the Kth on, for several processes at once; no report"
    )
    told = "end with the report (default: true); without it several benchmarks can share a folder"
    parser.add_switch("--report", told, default="true")
    parser.add_switch("--check", "look at data and weights, and run nothing")
    parser.add_argument(
        "--missing",
        choices=("stop", "skip"),
        default="stop",
        help="stop before anything runs if data or weights are missing, or leave those runs out (default: stop)",
    )
    parser.add_switch("--dry-run", "print what would run, and with which command; run nothing")
    parser.add_argument_group("--model.X, --data.X, --trainer.X", "options of every run, as test has them")
    return parser


def list_parser() -> CommandParser:
    """Return the parser of `list`."""
    parser = CommandParser("list", description="Prints what there is: one kind of thing, or all of them.")
    parser.add_argument("kind", nargs="?", choices=KINDS, help="by default all of them")
    return parser


PARSERS: Mapping[str, Callable[[], CommandParser]] = {
    "report": report_parser,
    "bench": bench_parser,
    "verify": verify_parser,
    "rescore": rescore_parser,
    "score": score_parser,
    "reproduce": reproduce_parser,
    "list": list_parser,
    "convert": convert_parser,
    "completion": completion_parser,
}
"""Parsers of the commands that build no model, as far as words can be read without one."""


def parser_of(command: str) -> CommandParser:
    """Return the parser that has the help of a command."""
    return run_help(command) if command in PURPOSES else PARSERS[command]()


def answer_at_once(command: str, words: Sequence[str]) -> list[str] | None:
    """Answer what needs none of the packages that take seconds to import: help, and what is misspelt or missing.

    Returns:
        The words for the command itself, to which `--help-all` is `--help`; None where all is said.

    Raises:
        UserError: There is no such configuration, model or finished run, or an option of a command that builds no
            model is wrong.
    """
    asked = "--help" in words or "-h" in words
    # The options of a model, which `convert MODEL --help` shows, are its own.
    if asked and (command != "convert" or words[0] in ("-h", "--help")):
        parser_of(command).print_help()
    else:
        words = ["--help" if word == "--help-all" else word for word in words]
        if command in PURPOSES:
            look(command, words)
        elif command == "score":
            given, others = score_parser().parse_known_args(words)
            look(command, [*(f"--config={name}" for name in given.config), *others], ["data"])
        elif command == "convert" and words:
            check_convertible(words[0])
        elif command in PARSERS and command not in ("bench", "reproduce", "convert", "completion"):
            # Those hand on what they do not know.
            run: Path | None = getattr(PARSERS[command]().parse_args(words), "run", None)
            if run is not None:
                # Only now, for pyarrow behind it takes longer to import than `--help` to print.
                from xbench.runs.files import RESULTS, reading

                with reading(run.expanduser()):
                    (run.expanduser() / RESULTS).stat()
        return [*words]
    return None
