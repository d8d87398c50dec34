"""The resource `run`: the steps of a run, from the listing of its root and their indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.io.progress import Report
from cordwood.manager.step_summaries import StepSummary, summarize_steps
from cordwood.storage.disk_usage import linked_bytes
from cordwood.storage.urls import parse_url
from cordwood.viewer.sources import Sources

_NO_POLICY = (
    "The files do not record which policy the job has: manager.plan() in the job says which steps "
    "it will delete."
)


def run_view(sources: Sources, report: Report | None) -> dict[str, Any]:  # noqa: ARG001
    """Return the steps that the run has now, oldest first; of each step only its index is read."""
    sources.list_steps()
    root, paths = sources.root, sources.paths
    steps = summarize_steps(root, list(paths))
    linked: Sequence[int | None] = [None] * len(steps)
    if parse_url(root) is None:
        linked = linked_bytes([paths[step.name] for step in steps])
    newest = next((step.name for step in reversed(steps) if not step.problem), None)
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    return {
        "root": root,
        "steps": [
            _as_json(step, size, is_newest=step.name == newest)
            for step, size in zip(steps, linked, strict=True)
        ],
        "metric_names": list(names),
        "policy": _NO_POLICY,
    }


def _as_json(step: StepSummary, linked: int | None, *, is_newest: bool) -> dict[str, Any]:
    disk = step.disk_bytes
    return {
        "name": step.name,
        "number": step.step,
        "format": step.format,
        "time": step.time,
        "metrics": dict(step.metrics),
        "disk_bytes": disk,
        "written_bytes": None if disk is None or linked is None else disk - linked,
        "linked_bytes": linked,
        "pinned": step.pinned,
        "state": step.state,
        "problem": step.problem,
        "note": step.note,
        "kept": _reasons(step, is_newest=is_newest),
    }


def _reasons(step: StepSummary, *, is_newest: bool) -> list[str]:
    """Return the reasons why no policy deletes a step, as far as its files say."""
    if step.state not in ("whole", "damaged"):
        return []
    reasons = ["it is the newest whole step"] if is_newest else []
    reasons += ["a job has pinned it"] if step.pinned else []
    reasons += ["it is damaged: no policy deletes it"] if step.state == "damaged" else []
    return reasons + ([step.note] if step.note else [])
