"""Steps that other tools have saved: Orbax's, Flax's and eFormer's, for a run that moves over."""

from __future__ import annotations

import re
from typing import NamedTuple

from cordwood.api.layouts import origin_of
from cordwood.engine.directory import LocalDirectory
from cordwood.engine.urls import parse_url
from cordwood.errors import CordwoodError

__all__ = ["ForeignStep", "foreign_step", "number_in"]

_NAME = re.compile(r"(checkpoint_|run-|)0*([0-9]{1,18})")
_EFORMER_LAST = "metadata.json"  # what eFormer's Checkpointer writes once a step is there


class ForeignStep(NamedTuple):
    """A step of another tool."""

    step: int
    tool: str
    format: str | None  # of a file, as `cordwood.load` takes it


def number_in(name: str) -> int | None:
    """The number of the step whose entry has that name, whatever tool gives such; None: no step's.

    >>> [number_in(name) for name in ("100", "checkpoint_100", "run-100", "logs")]
    [100, 100, 100, None]
    """
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[2])


def foreign_step(name: str, path: str, *, is_file: bool) -> ForeignStep | None:
    """What lies at a path that is named as Orbax, Flax or eFormer name steps; None: no step.

    Args:
        name: its name in the root: `100` (Orbax, or a `cordwood.save`), `checkpoint_100` (Flax),
            `run-100` (eFormer).
        path: where it lies.
        is_file: a file, and no directory.
    """
    found = _NAME.fullmatch(name)
    if found is None or parse_url(path) is not None:
        return None
    prefix, step = found[1], int(found[2])
    if is_file:
        return ForeignStep(step, "Flax", "msgpack") if prefix == "checkpoint_" else None
    try:
        layout = origin_of(path, format=None, prefix=None).name
        if prefix == "run-":
            with LocalDirectory(path) as directory:
                if not directory.has(_EFORMER_LAST):
                    return None  # its save has not finished
    except (OSError, CordwoodError):
        return None
    tools = {"packs": "cordwood.save", "zarr": "eFormer"}
    return ForeignStep(step, tools.get(layout, layout), None)
