"""How the options of the commands that run a model are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser
from yaml import YAMLError

from xbench.commands.complaints import in_one_paragraph
from xbench.commands.configs import check_yaml, resolve_config
from xbench.errors import UserError

__all__ = ["NamedConfig", "Parser", "configs_first", "refuse_change", "user_error_behind"]


_load_yaml = get_loader("yaml")


def _load_checked(text: str) -> Any:
    check_yaml(text)
    return _load_yaml(text)


# Here and not where --config is read, for a configuration may name further files.
set_loader("yaml", _load_checked, (YAMLError,))


class NamedConfig(ActionConfigFile):
    """`--config` by path or by name; remembers which classes the configurations chose."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Read a configuration over what stands there already.

        Raises:
            UserError: It names nothing, or chooses another class than an earlier one.
        """
        super().__call__(parser, cfg, resolve_config(str(values)), option_string)
        for part in ("model", "data"):
            chosen = cfg.get(f"{part}.class_path")
            if chosen is not None:
                refuse_change(part, parser.chosen.setdefault(part, chosen), chosen)


class Parser(LightningArgumentParser):
    """Parser that complains in one paragraph.

    Attributes:
        chosen: The classes that the configurations chose, by part (`model`, `data`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.chosen: dict[str, str] = {}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse found wrong as one paragraph."""
        if not self.exit_on_error:
            # A parser within a parser: the outer one collects its complaints.
            super().error(message, ex)
        cause = user_error_behind(ex)
        raise cause or UserError(in_one_paragraph(message), exit_status=2)


def refuse_change(part: str, chosen: str, changed: str) -> None:
    """Refuse to exchange the class that a configuration chose for a part.

    Raises:
        UserError: `changed` is another class than `chosen`.
    """
    # jsonargparse would keep those arguments of the first class that the second happens to have as well, such as a
    # checkpoint, and the run would give a wrong number that looks right.
    if chosen != changed:
        raise UserError(
            f"The configuration chose the {part} {chosen}, and then {changed} was asked for, which would inherit "
            f"arguments that were meant for the first. Name one pair instead (--config MODEL_DATASET), or write a "
            f"configuration of your own with class_path: {changed}.",
            exit_status=2,
        )


def configs_first(options: Sequence[str]) -> list[str]:
    """Move `--config` before all other options, which it would otherwise overwrite without a word."""
    configs: list[str] = []
    others: list[str] = []
    words = iter(options)
    for word in words:
        if word in ("-c", "--config"):
            configs += [word, *[value for value in [next(words, None)] if value is not None]]
        elif word.startswith("--config="):
            configs.append(word)
        else:
            others.append(word)
    return configs + others


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an exception is or was caused by; jsonargparse wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None
