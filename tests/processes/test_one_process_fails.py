"""Real processes of which one fails: the saves after that work, whatever it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes.failures import KINDS, TIMEOUT_SECONDS, Injection, Outcome
from tests.processes.group import Group

GAP = 6  # steps between failures


@pytest.fixture(scope="module")
def three() -> Iterator[Group]:
    with Group(3) as group:
        yield group


def check(group: Group, path: Path, injections: list[Injection]) -> None:
    """Run a manager with failures: each may lose its own step, and be reported by the next save."""
    last = injections[-1].step + GAP
    begun = time.monotonic()
    outcomes = group.run("failures.run", path=str(path), last=last, injections=injections)
    assert time.monotonic() - begun < 60 + len(injections) * 3 * TIMEOUT_SECONDS
    require_recovery(outcomes, injections, last)
    for each in injections:  # each failure was reported
        if each.kind not in ("left out", "too many"):
            assert each.step in outcomes[each.process][0]


def require_recovery(
    outcomes: Sequence[Outcome], injections: Sequence[Injection], last: int
) -> int:
    """Return how many steps were lost; raise AssertionError for any but those of the failures."""
    failing = {each.step for each in injections}
    reported = failing | {step + 1 for step in failing}
    for failed, _ in outcomes:
        assert set(failed) <= reported, (injections, failed)
    lost = set(range(1, last + 1)) - set(outcomes[0].steps)
    assert lost <= failing, (injections, outcomes)
    return len(lost)


@pytest.mark.parametrize("process", [0, 1])
def test_any_failure_of_one_of_two_processes_is_reported_by_both(
    tmp_path: Path, two: Group, process: int
) -> None:
    check(two, tmp_path, [Injection(GAP * n, process, kind) for n, kind in enumerate(KINDS, 1)])


@pytest.mark.parametrize("process", [0, 2])
def test_any_failure_of_one_of_three_processes_is_reported_by_all(
    tmp_path: Path, three: Group, process: int
) -> None:
    check(three, tmp_path, [Injection(GAP * n, process, kind) for n, kind in enumerate(KINDS, 1)])
