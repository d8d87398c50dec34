"""Metrics that are added to a committed step."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import CordwoodError
from cordwood.formats.load_format import records_of, storage_of
from cordwood.formats.table import DEFAULT
from cordwood.manager.missing_steps import finished_step, missing_step_error
from cordwood.manager.steps import Steps
from cordwood.storage.storage_protocol import IndexChange
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker


class _Gone(CordwoodError):
    """The error of a commit whose step was deleted meanwhile."""


def add_metrics(
    steps: Steps,
    number: int,
    metrics: Mapping[str, float],
    *,
    overwrite: bool,
    timeout_seconds: float,
) -> None:
    """Add metrics to the record of a step, atomically and durably; raises as the manager's method.

    Args:
        steps: the steps of the root.
        number: the step.
        metrics: the metrics by name.
        overwrite: True to replace values that are there.
        timeout_seconds: the longest wait for the lock of another save of the step.
    """
    step = finished_step(steps, number)
    step.require_known()
    store = storage_of(DEFAULT).store_at(step.location, to_save=True)

    def change(index: bytes | None) -> IndexChange:
        if index is None:
            raise _Gone(step.path)
        return records_of(DEFAULT).change_of_metrics(
            index, metrics, name=step.path, overwrite=overwrite
        )

    def commit() -> None:
        with store.transaction(others_commit=False, timeout_seconds=timeout_seconds) as save:
            save.commit(change)

    try:
        change(store.read_index())  # what is refused is refused before anything is written
        run_in_worker(commit)
    except (_Gone, FileNotFoundError) as e:
        raise missing_step_error(steps, number) from e
    log.info("%s: step %d: added the metrics %s", steps.root, number, ", ".join(metrics))
