"""Power cuts and kills in every call that changes a disk, in every order that flushes allow.

`make soak` checks every state that the model of `tests.faults.file_system` gives; `make test` a
fixed sample of them.
"""

from __future__ import annotations

import os

import pytest

from cordwood.storage import syscalls
from tests.faults.crash_states import CrashCase, Effort, Tree, check_crash_states
from tests.soak.crash_calls import crash_cases
from tests.soak.page import SOAK, as_table, write_section

EFFORT = Effort() if SOAK else Effort(all_of=3, samples=3, most=6, kills=1, most_after_kills=2)
CASES = [case for case in crash_cases() if SOAK or not case.is_large]
_rows: list[list[object]] = []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_old_or_new_and_completed_by_a_second_call(case: CrashCase, memory_folder: str) -> None:
    checked = check_crash_states(case, memory_folder, EFFORT)
    assert not checked.problems, "\n".join(checked.problems[:5])
    assert checked.checked > 4
    counts = [checked.effects, checked.states, checked.kills, checked.after_kills]
    _rows.append([case.name, *counts, 0])
    _report()


def _report() -> None:
    totals = [sum(int(str(row[n])) for row in _rows) for n in range(1, 6)]
    write_section(
        "Every crash state of every call",
        "The system calls of each call are recorded. A model of a file system then gives every\n"
        "state that a power cut may leave: each change of a directory that was not flushed is\n"
        "kept or lost by itself, and of a file that was not flushed nothing, zeros, a half, the\n"
        "last write or all is there. (Of more than six pending changes: each one lost, each one\n"
        "kept, every first part, and 30 random sets.) In each state every reader must see the old\n"
        "or the new tree, `verify` must agree, and the same call again must complete it. Then the\n"
        "process is killed at each change of a directory, the call is made again, and the power\n"
        "is cut in that call or after it. Wrong: damaged, lost, a wrong verdict, not completed.\n\n"
        + as_table(
            ["call", "effects", "states", "kills", "states after kills", "wrong"],
            [*_rows, ["all", *totals]],
        ),
    )


def test_the_checker_sees_what_a_save_without_flushes_loses(memory_folder: str) -> None:
    """A file that is written and renamed without a flush is found to be damaged and lost."""

    def prepare(root: str) -> None:
        _write(f"{root}/m.msgpack", b"\x81\xa1a\x01")

    def call(root: str) -> None:
        _write(f"{root}/m.msgpack", b"\x81\xa1a\x02")

    case = CrashCase("careless", prepare, call, (Tree("m.msgpack"),))
    problems = check_crash_states(case, memory_folder, EFFORT._replace(kills=0)).problems
    assert any("does not load" in problem for problem in problems)
    assert any(
        "after the call" in problem and "not one of those" in problem for problem in problems
    )


def _write(path: str, data: bytes) -> None:
    calls = syscalls.current()
    fd = calls.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    calls.pwrite(fd, memoryview(data), 0)
    calls.close(fd)
    calls.replace(f"{path}.new", path)
