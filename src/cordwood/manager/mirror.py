"""Mirror: a second place for the steps of a run, as the manager gets it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cordwood.policies.keep_policies import KeepWhat, as_keep_policy
from cordwood.policies.save_policies import SaveWhen, as_save_policy


@dataclass(frozen=True)
class Mirror:
    """A second place for the steps of a run, to which `CheckpointManager` copies them.

    Each step there is a complete checkpoint, as `cordwood.copy` makes it. Copies are made in the
    background, one at a time, after the commits: `save` never waits for them. If copying is slower
    than saving, the newest step is copied next, and those between are skipped.

    Args:
        root: the directory or URL to copy to; of this run alone, and not within its root.
        every: which of the committed steps to copy: a number of steps, or save policies joined by
            `|` and `&`, which are asked about the steps of the mirror. None: every step.
        keep: which steps to keep in the mirror: a number of the newest, or policies, as in
            `CheckpointManager`. None: all. The newest is always kept.
        wait_seconds: how long `wait`, `close` and the end of a `with` block wait at most for the
            copy that is running; what is not copied then is a problem (`manager.problems`).

    >>> import numpy as np
    >>> from cordwood import CheckpointManager
    >>> with CheckpointManager("fast/run", keep=2, mirror=Mirror("safe/run", every=10)) as manager:
    ...     for step in range(0, 11, 5):
    ...         _ = manager.save(step, {"w": np.zeros(3)})
    >>> manager.mirrored
    10
    """

    root: str | os.PathLike[str]
    every: SaveWhen = None
    keep: KeepWhat = None
    wait_seconds: float = 300.0

    def __post_init__(self) -> None:
        as_save_policy(self.every, "every")
        as_keep_policy(self.keep)
        seconds = self.wait_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"wait_seconds={seconds!r:.80}: expected a number of seconds")
        if not seconds >= 0:
            raise ValueError(f"wait_seconds: expected at least 0, found {seconds!r}")
