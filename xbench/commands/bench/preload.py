"""First import of the process from which runs are forked; runs include the digest of its code."""

import os
import signal

from xbench.runtime.digests import source_sha256
from xbench.runtime.start_up import import_lean_torchmetrics

# Signals from terminal or cluster must not end this process before its runs.
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
source_sha256()
import_lean_torchmetrics()
