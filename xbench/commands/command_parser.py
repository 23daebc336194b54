"""The parser of the commands that run no model."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from xbench.errors import UserError

__all__ = ["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """Parser of `python -m xbench.cli COMMAND` that complains in one paragraph.

    Args:
        command: Name of the command.
        **kwargs: As for `argparse.ArgumentParser`.
    """

    def __init__(self, command: str, **kwargs: Any) -> None:
        super().__init__(prog=f"python -m xbench.cli {command}", **kwargs)
        self._command = command

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the options.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{self._command}: {message}. See {self.prog} --help.", exit_status=2)
