"""The detection of the format of a directory, on a disk or in an object store."""

from __future__ import annotations

from cordwood.errors import NotACheckpointError
from cordwood.formats.list_steps import foreign_steps, steps_in
from cordwood.formats.load_format import best_match, match_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import MAX_STEPS_OPENED, is_named_step
from cordwood.formats.table import Format, directory_formats


def format_in(place: Place) -> Format | None:
    """Return the format of the checkpoint that a directory is; None if it is none.

    Raises as `indexed_format`.
    """
    format = indexed_format(place)
    if format is not None or _is_directory_of_steps(place):
        return format
    below = Place(place.location, directory=place.directory, search_below=True)
    return next((each for each in directory_formats() if match_of(each, below)), None)


def indexed_format(place: Place) -> Format | None:
    """Return the format whose index, or whose items, lie in the directory itself.

    Raises NotACheckpointError if there are indexes of several formats that are written.
    """
    written = written_format(place)
    if written is not None:
        return written
    read_only = [each for each in directory_formats() if not each.is_writable]
    return best_match(read_only, place)


def written_format(place: Place) -> Format | None:
    """Return the format of the checkpoint in a directory, of those that are written.

    Raises NotACheckpointError if there are indexes of several.
    """
    formats = [each for each in directory_formats() if each.is_writable and match_of(each, place)]
    if len(formats) > 1:
        names = " and ".join([each.index_name for each in formats])
        raise NotACheckpointError(
            f"{place.path} has both {names}: remove the one that is not meant"
        )
    return formats[0] if formats else None


def _is_directory_of_steps(place: Place) -> bool:
    """Return whether the directories in one are steps, and not the keys of a tree.

    Those that are called by a number alone are a list's, if they count from 0 on.
    """
    foreign = foreign_steps(place)
    steps = steps_in(place, foreign=foreign)
    if any(map(is_named_step, steps)) or foreign:
        return True
    if all(map(str.isdecimal, steps)) and steps and sorted(steps) == sorted(place.folders):
        return sorted(map(int, steps)) != list(range(len(steps))) or any(
            indexed_format(place.child(name)) is not None for name in steps[-MAX_STEPS_OPENED:]
        )
    return False
