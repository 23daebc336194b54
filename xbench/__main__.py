"""`xbench`, and `python -m xbench`: the same as `python -m xbench.cli`."""

from __future__ import annotations

import os
import sys

from xbench import cli


def main() -> int:
    """Run a command with the working directory on the path, where a user's own classes lie, as `python -m` does."""
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.insert(0, os.getcwd())
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
