"""The page of tables benchmarks/manager.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.manager_failures import QUESTIONS
from benchmarks.manager_loop import CASES, KEPT, Case, Measured
from benchmarks.manager_names import CORDWOOD, NAMES, ORBAX, WITHOUT
from benchmarks.pages import page_head

__all__ = ["as_markdown"]

OVERHEAD_MIN = 2.0  # Orbax's overhead / cordwood's
RESUME_MIN = 3.0

_HOW = f"""\
Written by `make bench`. One training loop runs in one process, with each manager and without one,
in an order that rotates from round to round. The figures are medians. A step works on both cores
and then replaces the whole state (GPT-2-shaped, in f32 with Adam's moments, 447 leaves), and
donates the old one. Overhead is the time of the loop divided by the time of the loop without
saving: once until the last step is done, and once until the last save is done too. "to resume" is
the time to create a new manager and to restore the newest step into a `like`, from a warm page
cache. Disk use is that of the {KEPT} kept steps: of the loop, and of a run that changes the
parameters of one block in twelve. cordwood's saves are durable when they count, and its restores
are verified. The saves of the others can still be lost at that time. Orbax saves asynchronously
with its defaults (compressed). eFormer's Checkpointer saves by `save_pytree`, which is synchronous
and its only way that works (`on_step` with a tree raises a TypeError)."""

_FAILURES = """\
The manager keeps one step. Step 1 is saved. From then on no file may grow beyond 64 KiB
(RLIMIT_FSIZE; as on a full disk, the kernel refuses longer writes). Then steps 2 and 3 are
saved."""


def as_markdown(
    measured: Mapping[str, Measured],
    failures: Mapping[str, Mapping[str, str]],
    replicas: Sequence[str],
    versions: Mapping[str, str],
    machine: str,
) -> str:
    """Return all measurements as one page, the lines about replicas last."""
    title = "Managers of a run's steps: cordwood beside its peers"
    lines = page_head(title, _HOW, versions, machine)
    for name, case in measured.items():
        lines += [*_section(CASES[name], case), ""]
    lines += ["## When a save in the background fails", "", *_FAILURES.splitlines(), ""]
    lines += [f"| | {' | '.join(failures)} |", f"|---|{'---|' * len(failures)}"]
    for key, question in QUESTIONS.items():
        cells = [
            textwrap.shorten(answers[key], 120, placeholder=" ...") for answers in failures.values()
        ]
        lines.append(f"| {question} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *replicas, ""])


def _section(case: Case, measured: Measured) -> list[str]:
    lines = [f"## {case.title}", ""]
    saves = len(range(case.first, case.steps, case.every))
    lines += [f"{measured.state_bytes / 1e9:.3f} GB, {case.steps} steps, {saves} saves, "]
    lines[-1] += f"{case.rounds} rounds"
    lines += ["", "| | loop, s | overhead | until saved, s | overhead | a save blocks it, ms |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name in (WITHOUT, *NAMES):
        loop, whole = median(measured.loops[name]), median(measured.wholes[name])
        call = f"{1e3 * median(measured.calls[name]):,.1f}" if measured.calls[name] else ""
        extra = [f"{_overhead(times, name):+.1%}" for times in (measured.loops, measured.wholes)]
        lines.append(f"| {name} | {loop:.2f} | {extra[0]} | {whole:.2f} | {extra[1]} | {call} |")
    lines += [
        "",
        f"| | to resume, ms | {KEPT} steps, MB | {KEPT} steps, one block changes, MB |",
    ]
    lines += ["|---|---:|---:|---:|"]
    for name in NAMES:
        sizes = [
            f"{sizes[name] / 1e6:,.1f}" for sizes in (measured.kept_bytes, measured.frozen_bytes)
        ]
        resume = f"{1e3 * median(measured.resumes[name]):,.1f}"
        lines.append(f"| {name} | {resume} | {' | '.join(sizes)} |")
    return [
        *lines,
        "",
        "| ratio | measured | at least | |",
        "|---|---:|---:|---|",
        *_claims(measured),
    ]


def _claims(measured: Measured) -> list[str]:
    lines = []
    for what, times in (("loop", measured.loops), ("until saved", measured.wholes)):
        theirs, ours = (_overhead(times, name) for name in (ORBAX, CORDWOOD))
        lines.append(_claim(f"overhead, {what}", theirs / max(ours, 1e-6), OVERHEAD_MIN))
    theirs, ours = (median(measured.resumes[name]) for name in (ORBAX, CORDWOOD))
    return [*lines, _claim("resume", theirs / ours, RESUME_MIN)]


def _claim(what: str, ratio: float, target: float) -> str:
    met = "met" if ratio >= target else "**not met**"
    return f"| {what}: {ORBAX} / {CORDWOOD} | {ratio:.2f} | {target:g} | {met} |"


def _overhead(times: Mapping[str, list[float]], name: str) -> float:
    return median(times[name]) / median(times[WITHOUT]) - 1
