"""The pin of a step, which keeps managers from deleting it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cordwood.manager.missing_steps import finished_step, missing_step_error
from cordwood.manager.steps import Steps


@contextmanager
def pinned(steps: Steps, number: int) -> Iterator[str]:
    """Pin a step in the block, which gets its path. Raises as `StepReader.pin`."""
    step = finished_step(steps, number)
    with ExitStack() as stack:
        try:
            if step.format is None:  # no manager deletes files, which other tools save
                stack.enter_context(steps.storage.pin(step.entry))
            finished_step(steps, number)
        except FileNotFoundError as e:  # it has just been deleted
            raise missing_step_error(steps, number) from e
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise PermissionError(
                errno.EACCES,
                f"step {number} cannot be pinned: a pin is a file in its directory, made under a "
                "lock in the root, so it needs write permission in both; or read a copy",
                step.path,
            ) from e
        yield step.path
