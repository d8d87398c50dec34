"""Summaries of the steps of a run, for people: format, size, time, metrics, problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from cordwood.errors import CordwoodError, IncompleteCheckpointError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import number_in_name
from cordwood.formats.table import DEFAULT
from cordwood.formats.tool_steps import VERSION
from cordwood.loading.detect_checkpoint import detect_checkpoint
from cordwood.manager.step import best_of_each
from cordwood.manager.steps import Steps
from cordwood.storage.directories import modified_seconds, size_on_disk
from cordwood.storage.locations import Location, Url
from cordwood.storage.open_step_storage import open_step_storage

_NO_STEP = "CheckpointManager does not restore it: it reads the names 100, checkpoint_100, run-100"

State: TypeAlias = Literal["whole", "unfinished", "damaged", "unreadable"]


class StepSummary(NamedTuple):
    """A checkpoint in the root of a run."""

    step: int | None
    name: str
    format: str  # "" if it is not complete
    disk_bytes: int | None  # at a URL of the data files that its index names; None if unknown
    time: float | None  # start of its save, or else last modification; seconds since 1970
    metrics: Mapping[str, float]
    pinned: bool
    problem: str  # why it is incomplete or damaged; "" if it is not
    note: str  # why CheckpointManager does not restore or delete this complete step, or ""
    state: State = "whole"


def summarize_steps(root: Location, names: Sequence[str]) -> list[StepSummary]:
    """Return a summary of each step; of a step only its index is read.

    Args:
        root: the directory or URL of the run.
        names: the names of its steps, as `detect` returns them.
    """
    is_url = isinstance(root, Url)
    storage = open_step_storage(root, storage_of(DEFAULT).RULES)
    finished = [each for each in Steps(storage).entries(start=0) if each.finished]
    entries = {each.entry: each for each in finished}
    best = {each.step: each.entry for each in best_of_each(finished)}
    steps = []
    for name in names:
        child = root.child(name)
        entry = entries.get(name)
        time = modified_seconds(child)
        metrics: Mapping[str, float] = {}
        format, problem, note = "", "", _NO_STEP
        state: State = "whole"
        if entry is not None:
            saved = entry.saved if entry.counts else entry.foreign_metrics
            if saved is not None:
                time, metrics = saved.time or time, dict(saved.metrics)
            remover = "its WeightPublisher" if entry.problem == VERSION else "no policy"
            note = "" if entry.counts else f"{entry.problem}: {remover} deletes it"
            if entry.whole and best[entry.step] != name:
                note = f"{best[entry.step]} is step {entry.step}, too, and is the one that counts"
            if entry.damaged:
                problem, note, state = entry.problem, "", "damaged"
        try:
            # Asking an object store again would be one request for each step.
            is_ours = is_url and entry is not None and not entry.tool
            format = DEFAULT.name if is_ours else detect_checkpoint(child).format
        except (CordwoodError, OSError) as e:
            note = ""
            if not problem:
                problem, state = str(e), "unreadable" if isinstance(e, OSError) else "damaged"
                if isinstance(e, IncompleteCheckpointError):
                    state = "unfinished"
        known_bytes = None if entry is None else entry.data_bytes
        disk_bytes = known_bytes if is_url else size_on_disk(child)
        pinned = entry is not None and storage.in_use(name)
        number = number_in_name(name)
        steps.append(
            StepSummary(
                number, name, format, disk_bytes, time, metrics, pinned, problem, note, state
            )
        )
    return steps
