"""The end of waiting for a file system that no longer answers."""

from __future__ import annotations

from xbench.errors import UserError

_IN_A_ROW = 5


class TimedOutError(UserError):
    """An image took longer to read than it may."""


class StallGuard:
    """Ends a command that leaves out images when it would do nothing else any more, each after its whole time.

    Args:
        name: Of the dataset, for the message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._in_a_row = 0

    def see(self, image_id: str, timed_out: bool) -> None:
        """Take note of an image, in the order in which they come.

        Raises:
            UserError: It is the fifth in a row that took too long.
        """
        self._in_a_row = self._in_a_row + 1 if timed_out else 0
        if self._in_a_row == _IN_A_ROW:
            raise UserError(
                f"{self._name}: {_IN_A_ROW} images in a row (last: {image_id}) took longer than --data.timeout, so "
                "their file system seems to answer no more, and every further image would take as long. What is "
                "finished is kept: once the files can be read, the same command goes on (test: with --resume true)."
            )
