"""Two managers and three savers of one root in an object store, killed again and again.

`make soak` kills 300 processes. The managers share the pool of the run; the savers save trees of
their own prefixes into one directory beside the steps.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood import CheckpointManager, CordwoodError, KeepLast, StepReader, gc, load, save, verify
from cordwood.errors import PendingSaveError
from cordwood.results import SaveReport
from cordwood.testing import assert_trees_equal
from tests.processes.group import forked
from tests.soak.journal import Line, read_journal, telling
from tests.soak.page import SOAK, as_table, write_section
from tests.threads import until

ROUNDS = 60 if SOAK else 2
KEEP = KeepLast(4)
SAVERS = ("a", "b", "c")
_FROZEN = np.arange(400_000, dtype=np.float32)
_OVERTAKEN = "is not newer than step"
_BASE_DELETED = "the process that wrote it died"  # another manager has deleted the older step


def state_at(step: int) -> dict[str, Any]:
    """Return a state of which most does not change."""
    return {"frozen": _FROZEN, "trained": np.full(50_000, step, np.float32), "step": step}


def tree_of(name: str, number: int) -> dict[str, Any]:
    return {name: np.full(70_000, number, np.int64)}


def compete(root: str, journal: str, variables: Mapping[str, str], parity: int) -> None:
    """Save the next even or odd step after the newest existing one, without an end."""
    os.environ.update(variables)
    rng = random.Random(parity)

    def committed(report: SaveReport) -> None:
        lines.write("committed", report.step)

    with (
        telling(journal) as lines,
        CheckpointManager(root, keep=KEEP, on_save=committed) as manager,
    ):
        under_way = 0
        while True:
            after = max(under_way, *manager.steps(), 0) + 1
            step = after + (after - parity) % 2
            lines.write("begun", step)
            try:
                manager.save(step, state_at(step))
                under_way = step
                if rng.random() < 0.4:
                    manager.wait()
            except (CordwoodError, OSError) as e:
                if _OVERTAKEN not in str(e) and _BASE_DELETED not in str(e):
                    raise
                overtaken = under_way if isinstance(e, PendingSaveError) else step
                lines.write("overtaken", overtaken)


def save_prefix(
    root: str, journal: str, variables: Mapping[str, str], n: int, *, name: str
) -> None:
    """Save trees of one prefix, numbered from n on, without an end."""
    os.environ.update(variables)
    with telling(journal) as lines:
        while True:
            lines.write("begun", n)
            save(f"{root}/side", tree_of(name, n), prefix=name)
            lines.write("committed", n)
            n += 1


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment of clients of a server in a process of its own."""
    command = [sys.executable, "-m", "tests.storage.s3_server", "--digests"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "eu-west-1",
            }
        finally:
            server.kill()


def test_nothing_is_lost_or_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(17)
    events: Counter[str] = Counter()
    numbers = dict.fromkeys(SAVERS, 0)
    root = "s3://bucket/run"
    kills = 0
    with s3_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for _ in range(ROUNDS):
            kills += kill_all(tmp_path, root, variables, rng, numbers)
            present = StepReader(root).steps()
            for parity in (0, 1):
                lines = read_journal(tmp_path / f"manager-{parity}")
                events.update([line.what for line in lines])
                require_kept(lines, present)
            for step in present:
                assert verify(f"{root}/{step}").unverified_bytes == 0
                assert_trees_equal(load(f"{root}/{step}", to="numpy"), state_at(step))
            for name in SAVERS:
                lines = read_journal(tmp_path / f"saver-{name}")
                events.update([line.what for line in lines])
                numbers[name] = require_number(root, name, lines)
        with CheckpointManager(root, keep=KEEP) as manager:
            manager.save(present[-1] + 1, state_at(present[-1] + 1))
        in_two_days = time.time() + 2 * 24 * 3600
        monkeypatch.setattr(time, "time", lambda: in_two_days)
        gc(root)
        for step in StepReader(root).steps():
            assert verify(f"{root}/{step}").unverified_bytes == 0
    write_section(
        "An object store",
        f"{ROUNDS} times two managers (`keep=KeepLast(4)`, most of the tree unchanged, one pool) "
        "and three processes that save trees of\ntheir own prefixes into one directory, all killed "
        "at random moments; an S3 server on loopback:\n\n"
        + as_table(
            ["kills", "newest step", "begun", "committed", "overtaken", "lost", "wrong"],
            [
                [kills, present[-1]]
                + [events[what] for what in ("begun", "committed", "overtaken")]
                + [0, 0]
            ],
        ),
    )


def require_kept(lines: list[Line], present: list[int]) -> None:
    """Require each reported step, unless newer ones replaced it."""
    for what, step, detail in lines:
        assert what != "error", detail
        if what == "committed":
            newer = sum(each > step for each in present)
            assert step in present or newer >= KEEP.count, f"lost: {step}"


def require_number(root: str, name: str, lines: list[Line]) -> int:
    """Require the last reported tree of a prefix, or a later one; return the next number."""
    reported = [line.step for line in lines if line.what == "committed"]
    begun = [line.step for line in lines if line.what == "begun"]
    assert not [line for line in lines if line.what == "error"], lines[-1]
    if not reported:
        return max(begun, default=-1) + 1
    tree = load(f"{root}/side", prefix=name, to="numpy")
    number = int(tree[name][0])
    assert reported[-1] <= number <= begun[-1], f"lost: {name} {reported[-1]}, found {number}"
    assert_trees_equal(tree, tree_of(name, number))
    return begun[-1] + 1


def kill_all(
    folder: Path,
    root: str,
    variables: Mapping[str, str],
    rng: random.Random,
    numbers: Mapping[str, int],
) -> int:
    """Start all processes, wait until each has begun to save, and kill one after the other."""
    targets: dict[str, tuple[Callable[..., None], object]] = {
        "manager-0": (compete, 0),
        "manager-1": (compete, 1),
        **{f"saver-{name}": (partial(save_prefix, name=name), numbers[name]) for name in SAVERS},
    }
    journals = [folder / name for name in targets]
    for journal in journals:
        journal.unlink(missing_ok=True)
    processes = [
        forked(target, root, str(journal), variables, number)
        for journal, (target, number) in zip(journals, targets.values(), strict=True)
    ]

    def have_begun() -> bool:
        texts = [journal.read_text() for journal in journals if journal.exists()]
        assert all(process.is_alive() for process in processes), "\n".join(texts)
        return all(any(line.what == "begun" for line in read_journal(j)) for j in journals)

    try:
        until(have_begun, seconds=300)
        rng.shuffle(processes)
        for process in processes:
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
    return len(processes)
