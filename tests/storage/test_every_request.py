"""Every single request of a save, a load, a deletion and a gc goes wrong, in each way.

What was saved before is there, whole, or what was to be saved; a call that returns has done its
work; a call that raises says what the store did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import cordwood as cw
from cordwood.errors import CordwoodError, IncompleteCheckpointError
from cordwood.storage.object_stores import object_uploads
from cordwood.testing import assert_trees_equal
from tests.storage.bucket import Stored
from tests.storage.web_stores import Answer, Request, WebStore, web_store

ROOT = "run"
FROZEN = np.arange(60_000, dtype=np.float32)


def tree_of(number: int) -> dict[str, Any]:
    """Return a tree of a few parts, most of which does not change."""
    return {"frozen": FROZEN, "trained": np.full(20_000, number, np.float32), "n": number}


class Scenario(NamedTuple):
    """A call, what comes before it, and what is there after it: of its work all or nothing."""

    prepare: Callable[[str], None]
    call: Callable[[str], object]
    old: dict[str, int | None]  # trees by their place below the root; None: there is none
    new: dict[str, int | None]


def save_steps(root: str) -> None:
    with cw.CheckpointManager(root, background=False) as manager:
        for step in (1, 2):
            manager.save(step, tree_of(step))


def save_step(root: str) -> None:
    with cw.CheckpointManager(root, background=False) as manager:
        manager.save(3, tree_of(3))


def delete_step(root: str) -> None:
    with cw.CheckpointManager(root, background=False) as manager:
        manager.delete(1)


def load_step(root: str) -> None:
    assert_trees_equal(cw.load(f"{root}/2", to="numpy"), tree_of(2))


def save_and_leave(root: str) -> None:
    """Leave what a deletion and a save that died have left two days ago."""
    save_steps(root)
    web = _web[0]
    pool = f"{root.removeprefix('s3://bucket/').removeprefix('gs://bucket/')}/.data/{_DEAD}"
    web.age_seconds = 2 * 24 * 3600
    for name in (f"data-{_DEAD}-0-0.safetensors", "cells-0.json", ".removed-" + _DEAD):
        web.put(f"{pool}/{name}", b"1")
    web.age_seconds = 0


_web: list[WebStore] = []
_DEAD = "dead0000dead0000"  # the id of a save that died

STEPS: dict[str, int | None] = {"1": 1, "2": 2}
SCENARIOS = {
    "save": Scenario(
        lambda root: cw.save(f"{root}/x", tree_of(1)),
        lambda root: cw.save(f"{root}/x", tree_of(2)),
        {"x": 1},
        {"x": 2},
    ),
    "save of a step": Scenario(save_steps, save_step, {**STEPS, "3": None}, {**STEPS, "3": 3}),
    "load": Scenario(save_steps, load_step, STEPS, STEPS),
    "delete": Scenario(save_steps, delete_step, STEPS, {"1": None, "2": 2}),
    "gc": Scenario(save_and_leave, cw.gc, STEPS, STEPS),
}

Hook = Callable[[Request], Answer | None]


def once(answer: Answer) -> Callable[[int], Hook]:
    """Return what makes a hook that gives that answer to one request."""

    def make(number: int) -> Hook:
        seen = 0

        def hook(_: Request) -> Answer | None:
            nonlocal seen
            seen += 1
            return answer if seen == number else None

        return hook

    return make


def from_then_on(answer: Answer) -> Callable[[int], Hook]:
    def make(number: int) -> Hook:
        seen = 0

        def hook(_: Request) -> Answer | None:
            nonlocal seen
            seen += 1
            return answer if seen >= number else None

        return hook

    return make


class Fault(NamedTuple):
    """A way in which requests go wrong, and if the call succeeds all the same."""

    make_hook: Callable[[int], Hook]
    is_harmless: bool


FAULTS = {
    "busy": Fault(once(Answer(503)), True),
    "lost before": Fault(once(Answer(0)), True),
    "lost after": Fault(once(Answer(0, takes_effect=1)), True),
    "doubled": Fault(once(Answer(None, takes_effect=2)), True),
    "cut": Fault(once(Answer(None, takes_effect=1, cut=True)), True),
    "delayed": Fault(once(Answer(None, takes_effect=1, delay=0.02)), True),
    "refused": Fault(once(Answer(403)), False),
    "refused from then on": Fault(from_then_on(Answer(403)), False),
    "dead from then on": Fault(from_then_on(Answer(0)), False),
}


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        store.min_part_size = 1
        monkeypatch.setattr(object_uploads, "PART_BYTES", 128 << 10)
        _web[:] = [store]
        yield store


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_fault_at_any_request_leaves_old_or_new(
    web: WebStore, scenario: Scenario, fault: Fault
) -> None:
    prepared, count = prepare(web, scenario)
    assert count > 2
    for number in range(1, count + 1):
        root = f"{web.url}/{ROOT}-{number}"
        web.objects.update({f"{ROOT}-{number}/{name}": data for name, data in prepared.items()})
        web.hook = fault.make_hook(number)
        error = error_of(scenario.call, root)
        assert not (error and fault.is_harmless), f"request {number}: {error}"
        assert error is None or f"{web.scheme}://" in str(error), error
        expected = [scenario.new] if error is None else [scenario.old, scenario.new]
        web.hook = lambda _: None
        web.uploads.clear()  # of a store that was dead when they were given up
        found = {place: number_at(f"{root}/{place}") for place in scenario.old}
        assert found in expected, f"request {number}"
        if error is None:
            left = [key for key in web.objects if _DEAD in key and f"{ROOT}-{number}/" in key]
            assert left == [] or scenario.call is not cw.gc, f"request {number}"


def error_of(call: Callable[[str], object], root: str) -> Exception | None:
    """Return what a call raises."""
    try:
        call(root)
    except (CordwoodError, OSError) as e:
        return e
    return None


def prepare(web: WebStore, scenario: Scenario) -> tuple[dict[str, Stored], int]:
    """Return what is there before the call, and the number of its requests if all goes well."""
    root = f"{web.url}/{ROOT}"
    scenario.prepare(root)
    prepared = {key.removeprefix(f"{ROOT}/"): stored for key, stored in web.objects.items()}
    before = len(web.requests)
    scenario.call(root)
    assert {place: number_at(f"{root}/{place}") for place in scenario.new} == scenario.new
    return prepared, len(web.requests) - before


def number_at(url: str) -> int | None:
    """Return the number of the tree at a URL, all of which must be right."""
    try:
        tree = cw.load(url, to="numpy")
    except (FileNotFoundError, IncompleteCheckpointError):
        return None
    assert_trees_equal(tree, tree_of(tree["n"]))
    return int(tree["n"])
