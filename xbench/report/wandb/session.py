"""Begin Weights & Biases runs without prompts, hangs or a required network."""

from __future__ import annotations

import netrc
import os
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from xbench.runtime.errors import UserError
from xbench.runtime.files import writing


def begin_run(folder: Path, options: Mapping[str, Any], offline: bool | None = None) -> Any:
    """Begin a W&B run with options of `wandb.init` and files in `folder`/wandb; it does nothing if WANDB_MODE=disabled.

    If `offline` is None it begins online if `server_answers`, and offline if that fails. Raises UserError if the folder
    cannot be written to, or if `offline` is False and the run cannot begin online.
    """
    import wandb  # takes a while, and runs without it need not wait

    # wandb's service resolves relative paths in the folder where it started.
    folder = folder.expanduser().absolute()
    hint = "Give a folder that you may write to with --trainer.default_root_dir, or do without: --trainer.logger false."
    with writing(f"Weights & Biases cannot write to {folder}", hint):
        folder.mkdir(parents=True, exist_ok=True)
    # By default wandb keeps artifacts in the home folder, where a sync from elsewhere misses them.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder / "wandb"))
    online = server_answers() if offline is None else not offline
    mode = "disabled" if os.environ.get("WANDB_MODE") == "disabled" else "online" if online else "offline"
    # Skip progress bars, and do not wait for a slow server.
    settings = wandb.Settings(console="off", init_timeout=30, silent=not online)
    options = {**options, "dir": str(folder), "settings": settings, "mode": mode}
    try:
        return wandb.init(**options)
    except wandb.errors.Error as error:
        if offline is not None:
            raise UserError(
                f"Weights & Biases could not begin a run online: {' '.join(str(error).split())}. Check the network "
                "and `wandb login`, or leave out --trainer.logger.offline false to log offline."
            ) from error
        warnings.warn(f"Weights & Biases could not begin a run online ({error}); logging offline.", stacklevel=2)
        return wandb.init(**options | {"mode": "offline"})


def offline_folder(run: Any) -> Path | None:
    """Return the folder of an offline run for `wandb sync`; None if online or disabled."""
    return Path(run.dir).parent if run.offline and not run.disabled else None


def server_answers() -> bool:
    """Return whether WANDB_MODE allows W&B, there is a key (WANDB_API_KEY or `wandb login`), and the server answers."""
    import wandb

    own_server = os.environ.get("WANDB_BASE_URL")
    server = urlsplit(own_server or str(wandb.Settings().base_url))
    # Keys may be filed under the old address of the hosted service.
    hosts = [server.netloc] if own_server else [server.netloc, "api.wandb.ai"]
    if os.environ.get("WANDB_MODE", "online") not in ("online", "run"):
        return False
    try:
        if not os.environ.get("WANDB_API_KEY"):
            kept = netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser())
            if not any(kept.authenticators(host) for host in hosts):
                return False
        with socket.create_connection((server.hostname or "", server.port or 443), timeout=3):
            return True
    except (OSError, netrc.NetrcParseError):
        return False
