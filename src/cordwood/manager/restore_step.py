"""The restoring of a step: the requested one, or the newest whole one.

All processes of a job load the same step: process 0 chooses it, and each one reports its result.
"""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from cordwood.errors import CorruptionError, FormatError, ProcessError
from cordwood.io.open_files import is_disk_error
from cordwood.manager.choose_step import Choice, ChosenStep, choose_newest, choose_numbered
from cordwood.manager.load_step import LoadedStep, load_step
from cordwood.manager.restore_request import RestoreRequest
from cordwood.manager.step_holder import StepHolder
from cordwood.manager.steps import Steps
from cordwood.message_text import printable
from cordwood.processes.process_error_texts import process_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.peers.held_file import UnreachableFileError
from cordwood.threads.log import log

_TO_THE_CALLER = 4  # frames from a warning to the caller of `CheckpointManager.restore`
_NEWEST = "(the newest)"
_DAMAGE = (FileNotFoundError, CorruptionError, FormatError, UnreachableFileError)


class _Failure(NamedTuple):
    """The failure of a process to load a step; between processes it is a list."""

    is_missing: bool  # nothing was found
    text: str


def restore_step(
    steps: Steps,
    holders: Sequence[StepHolder],
    rendezvous: Rendezvous,
    number: int,
    request: RestoreRequest,
) -> LoadedStep:
    """Load the step of a number, as one of the processes of a rendezvous.

    Args:
        steps: the steps of the root.
        holders: other places that hold copies of them, the nearest first.
        rendezvous: the processes.
        number: the step.
        request: what is to be loaded of it.

    Raises as `CheckpointManager.restore` does.
    """

    def find(requests: list[str]) -> ChosenStep:
        _require_same(requests, steps.root)
        return choose_numbered(steps, holders, number)

    while True:
        chosen = ChosenStep.received(rendezvous.exchange(str(number), find))
        loaded, failure = None, None
        place = _place_of(steps, holders, chosen)
        with _explaining(steps, chosen):
            try:
                location = place.storage.location_of(chosen.entry)
                loaded = load_step(chosen, location, request, rendezvous)
            except (OSError, CorruptionError, FormatError) as e:
                if not chosen.has_copy or not _is_damage(e, chosen):
                    raise
                failure = _Failure(isinstance(e, FileNotFoundError), str(e))
        answer = rendezvous.exchange(failure, partial(_judge, steps, chosen))
        if not answer and loaded is not None:
            _log_holder(chosen, rendezvous)
            return loaded
        steps.mark_damaged(number, answer)


def restore_newest(
    steps: Steps,
    holders: Sequence[StepHolder],
    rendezvous: Rendezvous,
    request: RestoreRequest,
    *,
    required: bool,
) -> LoadedStep | None:
    """Load the newest whole step, as one of the processes of a rendezvous.

    Warns of steps that are passed over and, if there is no step, of checkpoints that are not steps.
    Returns None if no save has finished; with `required` that is an error. The arguments are those
    of `restore_step`. Raises as `CheckpointManager.restore` does.
    """
    root = steps.root
    damaged: dict[str, tuple[int, str]] = {}

    def choose(requests: list[str]) -> Choice:
        _require_same(requests, root)
        return choose_newest(steps, holders, damaged)

    while True:
        choice = Choice(*rendezvous.exchange(_NEWEST, choose))
        for step, path, problem in choice.damaged:
            damaged[path] = step, problem
            _warn(f"{path}: step {step} is passed over: {problem}")
        if choice.chosen is None:
            break
        chosen, loaded, failure = ChosenStep.received(choice.chosen), None, None
        place = _place_of(steps, holders, chosen)
        with _explaining(steps, chosen):
            try:
                location = place.storage.location_of(chosen.entry)
                loaded = load_step(chosen, location, request, rendezvous)
            except (OSError, CorruptionError, FormatError) as e:
                if not _is_damage(e, chosen):
                    raise
                failure = _Failure(isinstance(e, FileNotFoundError), str(e))
        answer = rendezvous.exchange(failure, partial(_judge, place, chosen))
        if not answer:
            break
        if rendezvous.index:
            place.mark_damaged(chosen.step, answer)
    for number, path in choice.unfinished:
        _warn(f"{path}: the save of step {number} did not finish; it is passed over")
    if choice.chosen is not None:
        _log_holder(chosen, rendezvous)
        return loaded
    if damaged:
        lines = [f"  {number}: {problem}" for number, problem in sorted(damaged.values())]
        raise CorruptionError(f"{root}: no step can be restored:\n" + "\n".join(lines))
    if required:
        raise FileNotFoundError(
            errno.ENOENT,
            f"there is no step to restore in {root}, but required=True was passed: "
            f"{choice.nothing}",
            root,
        )
    if choice.others:
        _warn(f"{root}: nothing is restored, and {choice.nothing}")
    else:
        level = logging.DEBUG if rendezvous.index else logging.INFO
        log.log(level, "nothing to restore in %s: %s", root, choice.nothing)
    return None


def _place_of(steps: Steps, holders: Sequence[StepHolder], chosen: ChosenStep) -> Steps:
    """Return the steps of the place that a step was chosen from."""
    named = {holder.name: holder.steps for holder in holders}
    return steps if chosen.holder is None else named[chosen.holder]


def _is_damage(error: Exception, chosen: ChosenStep) -> bool:
    """Return True for an error after which another place, or another step, is tried."""
    if isinstance(error, _DAMAGE):
        return True
    return chosen.has_copy and isinstance(error, OSError) and is_disk_error(error)


def _log_holder(chosen: ChosenStep, rendezvous: Rendezvous) -> None:
    """Log a line on process 0 if a step was not loaded from the root."""
    if chosen.holder is not None and rendezvous.index == 0:
        text = "step %d was restored from %s %s: %s"
        log.warning(text, chosen.step, chosen.holder, chosen.path, printable(chosen.why))


def _require_same(requests: Sequence[str], root: str) -> None:
    for process, step in enumerate(requests):
        if step != requests[0]:
            raise ProcessError(
                f"process {process} came to restore step {step} of {root}, process 0 step "
                f"{requests[0]}: every process must restore the same step; steps() and "
                "best() may differ for a moment, while process 0 deletes: let it choose, and send "
                "its choice to the others (jax.experimental.multihost_utils.broadcast_one_to_all)"
            )


@contextmanager
def _explaining(steps: Steps, chosen: ChosenStep) -> Iterator[None]:
    """Raise errors of the disk again, with the step and an older step to restore instead.

    `restore` does not choose an older step by itself: the disk may work the next time.
    """
    try:
        yield
    except OSError as e:
        if not is_disk_error(e):
            raise
        step = chosen.step
        older = steps.newest(lambda each: each.step < step and each.whole)
        advice = "" if older is None else f"; restore({older.step}) loads the step before it"
        message = f"{e.strerror}: step {step} cannot be read from the disk{advice}"
        raise type(e)(e.errno, message, e.filename or chosen.path) from e


def _judge(steps: Steps, chosen: ChosenStep, reports: Sequence[Sequence[Any] | None]) -> str:
    """Return, on process 0, why another step must be tried; "" if all have loaded this one.

    Args:
        steps: the steps of the root.
        chosen: the step.
        reports: the `_Failure` of each process; None for one that has loaded the step.
    """
    failures = {
        process: _Failure(*report) for process, report in enumerate(reports) if report is not None
    }
    if not failures:
        return ""
    step = chosen.step
    current = steps.at(step)
    if current is None or not current.whole:
        return "it was deleted meanwhile"
    missing = [process for process, failure in failures.items() if failure.is_missing]
    if missing and 0 not in failures:
        raise ProcessError(
            f"{process_names(missing)} found nothing at {chosen.path}, which process 0 has "
            "loaded: the steps must lie on a file system that all processes share; where each "
            "process has a root of its own, every one passes shared=False to its "
            "CheckpointManager"
        )
    process, (_, text) = next(iter(failures.items()))
    why = f"process {process}: {text}" if process else text
    steps.mark_damaged(step, why)
    return why


def _warn(message: str) -> None:
    warnings.warn(printable(message), RuntimeWarning, stacklevel=_TO_THE_CALLER)
