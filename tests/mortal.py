"""A model that can be made to die, and that writes down every image it is asked about."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from toys import Brightness

from xbench.types import Batch, ModelOutput


class Mortal(Brightness):
    """Brightness, mortal.

    MORTAL_LOG names a file that gets a line per image; `{rank}` in it stands for the process. MORTAL_DIES, such as
    `SIGKILL 3 1`, ends process 1 by that signal when it is asked about its batch number 3, counted from 0. MORTAL_WAITS
    are seconds that it takes for each batch, one number for all processes or, such as `0 0.3`, one for each. All come
    from the environment, so that the configuration of a run that dies is that of one that does not.
    """

    name = "mortal"
    asked_batches = 0

    def score(self, batch: Batch) -> ModelOutput:
        how = os.environ.get("MORTAL_DIES", "").split()
        if how and [self.asked_batches, self.trainer.global_rank] == [int(how[1]), int(how[2])]:
            os.kill(os.getpid(), signal.Signals[how[0]])
        self.asked_batches += 1
        rank = self.trainer.global_rank
        if log := os.environ.get("MORTAL_LOG"):
            with Path(log.format(rank=rank)).open("a") as file:
                file.write("".join(f"{image_id}\n" for image_id in batch.image_ids))
        waits = os.environ.get("MORTAL_WAITS", "0").split()
        time.sleep(float(waits[rank % len(waits)]))
        return super().score(batch)
