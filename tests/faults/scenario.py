"""What is saved over what, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Found: TypeAlias = Literal[
    "old",  # the tree that was there before loads
    "new",  # the tree being saved loads
    "damaged",  # something is there and does not load, or is neither
    "lost",  # nothing is there
]


class Scenario(NamedTuple):
    """A save of a new tree over an old one, as Python source that children can run too.

    Children of `kill_calls` fork: what they run must not start jax.
    """

    name: str  # of the checkpoint in its directory: a file, or a directory of its own
    trees: str  # binds `old` and `new`
    save: str  # saves `tree` at `path`
    load: str  # loads `path` and binds `found`; may use `old` and `new`
    leftovers: str = "leftovers = ()"  # binds what lies inside `path` and should not


class Outcome(NamedTuple):
    """What one fault left."""

    fault: str
    found: Found
    returned: bool  # the save returned as if all were well
    error: BaseException | None  # what it raised, where it ran in this process
    detail: str  # why what is there does not load
    after: Found  # what loads after one more, undisturbed save of the new tree
    leftovers: tuple[str, ...]  # what else lies there after that save

    @property
    def kept_a_tree(self) -> bool:
        """Exactly the old or the new tree loads, the new one where save returned; and the next
        save succeeds and leaves nothing else behind."""
        whole = self.found == "new" if self.returned else self.found in ("old", "new")
        return whole and self.after == "new" and not self.leftovers


def bind_trees(scenario: Scenario) -> dict[str, Any]:
    """A namespace with `old` and `new`."""
    names: dict[str, Any] = {}
    exec(scenario.trees, names)
    return names


def run_save(
    scenario: Scenario, names: Mapping[str, Any], path: str, which: Literal["old", "new"]
) -> None:
    """Save one of the trees at `path`."""
    exec(scenario.save, {**names, "path": path, "tree": names[which]})


def judge(
    scenario: Scenario,
    folder: str,
    *,
    fault: str,
    returned: bool,
    error: BaseException | None = None,
) -> Outcome:
    """Load what a fault left in `folder`, save once more, and look around."""
    names = bind_trees(scenario)
    path = os.path.join(folder, scenario.name)
    found, detail = _load(scenario, names, path)
    run_save(scenario, names, path, "new")
    after, why = _load(scenario, names, path)
    others = tuple(sorted(n for n in os.listdir(folder) if n != scenario.name))
    others = tuple(n for n in others if n != "lost+found")  # every ext4 has one
    inside: dict[str, Any] = {"path": path}
    exec(scenario.leftovers, inside)
    others += tuple(map(str, inside["leftovers"]))
    return Outcome(fault, found, returned, error, detail or why, after, others)


def _load(scenario: Scenario, names: Mapping[str, Any], path: str) -> tuple[Found, str]:
    bound = {**names, "path": path}
    try:
        exec(scenario.load, bound)
    except Exception as e:  # noqa: BLE001  (whatever it is, the tree did not load)
        if not os.path.lexists(path):
            return "lost", "no such file"
        return "damaged", f"{type(e).__name__}: {e}"
    if same_tree(bound["found"], names["new"]):
        return "new", ""
    if same_tree(bound["found"], names["old"]):
        return "old", ""
    return "damaged", "loaded, but is neither the old nor the new tree"


def same_tree(a: Any, b: Any) -> bool:
    """Whether two trees of dicts, lists, tuples, arrays and values are equal to the last bit."""
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
