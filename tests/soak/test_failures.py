"""One process of several fails at random calls of its manager, again and again.

`make soak` does it 100 times with two processes and 100 times with three.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.processes.failures import KINDS, draw
from tests.processes.group import Group
from tests.processes.test_one_process_fails import GAP, require_recovery
from tests.soak.page import SOAK, as_table, write_section

FAILURES = 100 if SOAK else 4
_rows: list[list[object]] = []


@pytest.mark.parametrize("count", [2, 3])
def test_every_later_save_works(tmp_path: Path, count: int) -> None:
    injections = draw(random.Random(count), FAILURES, count, GAP)
    last = injections[-1].step + GAP
    with Group(count) as group:
        outcomes = group.run("failures.run", path=str(tmp_path), last=last, injections=injections)
    lost = require_recovery(outcomes, injections, last)
    kinds = Counter(each.kind for each in injections)
    _rows.append([count, FAILURES, *(kinds[kind] for kind in KINDS), last - FAILURES, 0, lost])
    write_section(
        "Failures of one process",
        "Each of several processes of `jax.distributed` has a manager, which saves every step with "
        f"items. Every {GAP} steps one\nprocess failed, at random: in an item's state, in a leaf, "
        "for lack of memory, by an interrupt, by a skipped step, or\nby an extra save or restore. "
        "The loop recorded the error and continued. A failure may lose its own step, and the next\n"
        "save may report it. Every other step had to be saved:\n\n"
        + as_table(
            [
                "processes",
                "failures",
                *KINDS,
                "other saves",
                "failed among these",
                "steps lost in all",
            ],
            _rows,
        ),
    )
