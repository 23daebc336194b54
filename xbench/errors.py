"""The one kind of error that a user can cause and mend."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(Exception):
    """Something the user can mend: a path, an option, a file's content.

    The message is one paragraph that says what is wrong, where (file, option, image) and what to do. The command line
    prints it without a traceback and exits with `exit_status`.

    Args:
        message: The paragraph.
        exit_status: 1 for a failure of the run, 2 for wrong arguments or configuration.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status

    def __reduce__(self) -> tuple[type[UserError], tuple[str, int]]:
        # Data workers hand exceptions over by pickle, and the default would lose the exit status.
        return type(self), (str(self), self.exit_status)
