"""A save of one tree over another, and the outcome of a fault during it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

State: TypeAlias = Literal[
    "old",  # the old tree loads
    "new",  # the new tree loads
    "damaged",  # a checkpoint exists, but does not load, or loads as neither tree
    "lost",  # nothing exists at the path
]


class Scenario(NamedTuple):
    """A save of a new tree over an old one, as Python source, which child processes can run too.

    The children of `kill_calls` fork: the source must not import jax for them.
    """

    name: str  # name of the checkpoint, a file or a directory
    trees: str  # binds `old` and `new`
    save: str  # saves `tree` at `path`
    load: str  # loads `path` and binds `found` to the tree; may use `old` and `new`
    leftovers: str = "leftovers = ()"  # binds the entries inside `path` that should not exist


class Outcome(NamedTuple):
    """The outcome of one fault."""

    fault: str
    found: State  # the state of the path after the fault
    returned: bool  # the save returned without an error
    error: BaseException | None  # raised by the save, if it ran in this process
    detail: str  # why the checkpoint does not load; "" if it does
    after: State  # the state after one more save of the new tree, without a fault
    leftovers: tuple[str, ...]  # other entries that exist after that save

    @property
    def kept_a_tree(self) -> bool:
        """True if exactly the old or the new tree loads, and the next save leaves it alone there.

        If the save returned, it must be the new tree. The next save must succeed and leave no other
        files behind.
        """
        whole = self.found == "new" if self.returned else self.found in ("old", "new")
        return whole and self.after == "new" and not self.leftovers


def bind_trees(scenario: Scenario) -> dict[str, Any]:
    """Return a namespace with `old` and `new`."""
    names: dict[str, Any] = {}
    exec(scenario.trees, names)
    return names


def run_save(
    scenario: Scenario, names: Mapping[str, Any], path: str, which: Literal["old", "new"]
) -> None:
    """Save one of the two trees at `path`."""
    exec(scenario.save, {**names, "path": path, "tree": names[which]})


def judge(
    scenario: Scenario,
    folder: str,
    *,
    fault: str,
    returned: bool,
    error: BaseException | None = None,
) -> Outcome:
    """Load what a fault left in `folder`, save once more, and list the leftovers."""
    names = bind_trees(scenario)
    path = os.path.join(folder, scenario.name)
    state, detail = _load(scenario, names, path)
    run_save(scenario, names, path, "new")
    after, why = _load(scenario, names, path)
    others = tuple(sorted(n for n in os.listdir(folder) if n != scenario.name))
    others = tuple(n for n in others if n != "lost+found")  # every ext4 has one
    inside: dict[str, Any] = {"path": path}
    exec(scenario.leftovers, inside)
    others += tuple(map(str, inside["leftovers"]))
    return Outcome(fault, state, returned, error, detail or why, after, others)


def _load(scenario: Scenario, names: Mapping[str, Any], path: str) -> tuple[State, str]:
    bound = {**names, "path": path}
    try:
        exec(scenario.load, bound)
    except Exception as e:  # noqa: BLE001  (on any error the tree did not load)
        if not os.path.lexists(path):
            return "lost", "no such file"
        return "damaged", f"{type(e).__name__}: {e}"
    if same_tree(bound["found"], names["new"]):
        return "new", ""
    if same_tree(bound["found"], names["old"]):
        return "old", ""
    return "damaged", "loaded, but is neither the old nor the new tree"


def same_tree(a: Any, b: Any) -> bool:
    """Compare two trees of dicts, lists, tuples, arrays and values; True if every bit is equal."""
    if isinstance(a, dict) or isinstance(b, dict):
        return (
            isinstance(a, dict)
            and isinstance(b, dict)
            and a.keys() == b.keys()
            and all(same_tree(a[key], b[key]) for key in a)
        )
    if isinstance(a, list | tuple) or isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_tree, a, b))
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    return type(a) is type(b) and bool(a == b)
