"""The steps in a directory: checkpoints that are named as steps, and those of other tools."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.formats.load_format import run_reader_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import is_named_step, sorted_steps
from cordwood.formats.table import run_formats


def steps_in(place: Place, *, foreign: Sequence[str] | None = None) -> list[str]:
    """Return the names of the checkpoints of single steps in a directory, the oldest first.

    Args:
        place: the directory.
        foreign: the steps of other tools in it, if the caller has looked for them.
    """
    if foreign is None:
        foreign = foreign_steps(place)
    # A file whose name is a number is a chunk of an array.
    likely = [name for name in place.names if name in place.folders or is_named_step(name)]
    return sorted_steps(likely, extra=foreign)


def foreign_steps(place: Place) -> list[str]:
    """Return the names of the steps of other tools in a directory."""
    return [name for format in run_formats() for name in run_reader_of(format).steps_at(place)]
