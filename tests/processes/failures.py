"""Managers of which one process fails now and then; every function is called by all processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import register_pytree_node_class

from cordwood import CheckpointManager
from tests.manager.counters import Counter

TIMEOUT_SECONDS = 10.0
KINDS = ("items", "leaf", "memory", "interrupt", "left out", "too many", "restore")


class Injection(NamedTuple):
    """A failure of one process, at one step."""

    step: int
    process: int
    kind: str


class Outcome(NamedTuple):
    """The results of one process: the steps whose call raised, the errors, the existing steps."""

    failed: dict[int, str]
    steps: list[int]


@register_pytree_node_class
class Huge:
    """A node for which there is no memory."""

    def tree_flatten(self) -> Any:
        raise MemoryError("no memory for this")

    @classmethod
    def tree_unflatten(cls, _: Any, __: Any) -> Huge:
        return cls()


class Broken(Counter):
    """An item whose state cannot be had."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def get_state(self) -> dict[str, Any]:
        raise self._error


def run(path: str, last: int, injections: Sequence[Injection]) -> Outcome:
    """Save steps 1 to `last`, failing where it says; note what failed, and go on."""
    here = {each.step: each for each in injections if each.process == jax.process_index()}
    failed: dict[int, str] = {}
    manager = CheckpointManager(path, timeout_seconds=TIMEOUT_SECONDS)
    for step in range(1, last + 1):
        kind = here[step].kind if step in here else ""
        try:
            if kind in _CALLS:
                _CALLS[kind](manager, step)
            elif kind != "left out":
                manager.save(step, tree_of(step), items={"data": Counter(step)})
            if kind == "too many":
                manager.save(step, tree_of(step), items={"data": Counter(step)})
            if kind == "restore":
                manager.restore(step - 1)
        except BaseException as e:  # noqa: BLE001  (the test looks at it)
            failed[step] = f"{type(e).__name__}: {e}"
    try:
        manager.wait()
    except Exception as e:  # noqa: BLE001
        failed[last + 1] = f"{type(e).__name__}: {e}"
    return Outcome(failed, CheckpointManager(path).steps())


def tree_of(step: int) -> dict[str, Any]:
    return {"step": step, "name": f"step {step}"}


def _fail_items(manager: CheckpointManager, step: int) -> None:
    manager.save(step, tree_of(step), items={"data": Broken(ZeroDivisionError("odd"))})


def _interrupt(manager: CheckpointManager, step: int) -> None:
    manager.save(step, tree_of(step), items={"data": Broken(KeyboardInterrupt())})


def _fail_leaf(manager: CheckpointManager, step: int) -> None:
    manager.save(step, {**tree_of(step), "odd": object()}, items={"data": Counter(step)})


def _fail_memory(manager: CheckpointManager, step: int) -> None:
    manager.save(step, {**tree_of(step), "huge": Huge()}, items={"data": Counter(step)})


_CALLS: dict[str, Callable[[CheckpointManager, int], None]] = {
    "items": _fail_items,
    "interrupt": _interrupt,
    "leaf": _fail_leaf,
    "memory": _fail_memory,
}


def draw(rng: random.Random, count: int, processes: int, gap: int) -> list[Injection]:
    """Random failures, `gap` steps from one to the next."""
    return [
        Injection(gap * (1 + number), rng.randrange(processes), rng.choice(KINDS))
        for number in range(count)
    ]
