"""Imported first by the process that runs are forked from, and by nothing else; runs state the digest of its code."""

import os
import signal

from xbench.runtime.digests import source_sha256
from xbench.runtime.start_up import import_lean_torchmetrics

# Ctrl-C, Ctrl-Z, the end of the terminal and a cluster that ends the job do not end this process before its runs.
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
source_sha256()
import_lean_torchmetrics()
