"""Summaries of the checkpoints of a run, for people: format, size, time, metrics, problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from cordwood.api.detect import detect
from cordwood.errors import CordwoodError, IncompleteCheckpointError
from cordwood.formats.packs.cordwood_json import RULES
from cordwood.formats.registry import DEFAULT
from cordwood.formats.step_directories import step_number
from cordwood.manager.step_listing import StepListing
from cordwood.storage.disk_usage import modified_seconds, size_on_disk
from cordwood.storage.step_storage import open_step_storage
from cordwood.storage.urls import parse_url

_NO_STEP = "CheckpointManager does not restore it: it reads the names 100, checkpoint_100, run-100"

State: TypeAlias = Literal["whole", "unfinished", "damaged", "unreadable"]


class StepSummary(NamedTuple):
    """A checkpoint in the root of a run."""

    step: int | None
    name: str
    format: str  # "" if it is not complete
    disk_bytes: int | None  # None for a URL
    time: float | None  # start of its save, or else last modification; seconds since 1970
    metrics: Mapping[str, float]
    pinned: bool
    problem: str  # why it is incomplete or damaged; "" if it is not
    note: str  # why CheckpointManager does not restore or delete this complete step, or ""
    state: State = "whole"


def summarize_steps(path: str, names: Sequence[str]) -> list[StepSummary]:
    """Return a summary of each step; of a step only its index is read.

    Args:
        path: the directory or URL of the run.
        names: the names of its steps, as `detect` returns them.
    """
    is_url = parse_url(path) is not None
    storage = open_step_storage(path, RULES.index_name)
    entries = {each.entry: each for each in StepListing(storage).entries(start=0) if each.finished}
    steps = []
    for name in names:
        child = f"{path.rstrip('/')}/{name}"
        step = StepSummary(
            step_number(name),
            name,
            "",
            None if is_url else size_on_disk(child),
            modified_seconds(child),
            {},
            False,
            "",
            _NO_STEP,
        )
        entry = entries.get(name)
        if entry is not None:
            saved = entry.saved if entry.counts else entry.foreign_metrics
            is_exempt = not entry.counts and not entry.damaged
            step = step._replace(
                step=entry.step,
                pinned=storage.in_use(name),
                problem=entry.problem if entry.damaged else "",
                state="damaged" if entry.damaged else "whole",
                note=f"{entry.problem}: no policy deletes it" if is_exempt else "",
            )
            if saved is not None:
                step = step._replace(time=saved.time or step.time, metrics=dict(saved.metrics))
        try:
            # An object store holds no other format: asking would be one request for each step.
            is_packs = is_url and entry is not None
            step = step._replace(format=DEFAULT.name if is_packs else detect(child).format)
        except (CordwoodError, OSError) as e:
            state = step.state if step.problem else _state_of(e)
            step = step._replace(problem=step.problem or str(e), note="", state=state)
        steps.append(step)
    return steps


def _state_of(error: CordwoodError | OSError) -> State:
    if isinstance(error, IncompleteCheckpointError):
        return "unfinished"
    return "unreadable" if isinstance(error, OSError) else "damaged"
