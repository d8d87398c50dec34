"""The refusal to save over what tools such as Orbax have written, which cordwood only reads."""

from __future__ import annotations

from cordwood.errors import NotACheckpointError
from cordwood.formats.load_format import run_reader_of
from cordwood.formats.place import Place
from cordwood.formats.table import run_formats
from cordwood.storage.locations import LocalPath


def refuse_other_tools(place: LocalPath, *, asked: str) -> None:
    """Raise NotACheckpointError for a directory with checkpoints of a tool such as Orbax.

    `asked` is the path that the caller gave.
    """
    for format in run_formats():
        if run_reader_of(format).is_at(Place(place)):
            raise NotACheckpointError(
                f"{asked} holds what {format.tool} has written, which cordwood only reads: remove "
                "it, or save to another path"
            )
