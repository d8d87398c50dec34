"""The decision which files of a step may be removed: those that cordwood itself wrote there.

It is made by name and kind. Whatever else lies in the directory of a step, or below it, is somebody
else's, and no deletion touches it: a result of an evaluation, another run, a link, a mount.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cordwood.message_text import first_names
from cordwood.storage.paths import temporary_of, temporary_pattern, temporary_prefix
from cordwood.storage.storage_protocol import NamingRules

_MAX_SHOWN = 3
_NFS = ".nfs"  # NFS renames a removed file to such a name, and removes it once it is closed


class EntryContent(NamedTuple):
    """The names directly in the directory of a step, or below its URL up to the first slash.

    Attributes:
        written: names of files that cordwood wrote; the index comes first.
        foreign: all other names, sorted.
        sidecars: the paths of optional sidecars to remove durably; some may be gone.
    """

    written: tuple[str, ...]
    foreign: tuple[str, ...]
    sidecars: tuple[str, ...] = ()

    @property
    def foreign_text(self) -> str:
        """The foreign names, for a message: the first three of them."""
        return first_names(self.foreign, _MAX_SHOWN)


def split_content(
    files: Iterable[str],
    others: Iterable[str],
    rules: NamingRules,
    *,
    has_own_sidecars: bool,
    optional: Collection[str] = (),
) -> EntryContent:
    """Return which names in the directory of a step cordwood wrote.

    Args:
        files: the names of regular files, or of objects.
        others: the names of directories, links and special files. cordwood makes none, but those of
            optional sidecars: their paths are in place of the directory that they are in.
        rules: the naming rules of the step's format.
        has_own_sidecars: True if the sidecar files belong to an index of cordwood; other tools
            write files of these names, too.
        optional: the paths of the optional sidecars of the index.
    """
    written: list[str] = []
    every = [*files, *others]
    sidecars = [name for name in every if name in optional]
    foreign = [name for name in others if name not in optional]
    for name in files:
        if name in optional:
            continue
        if name.startswith(_NFS):
            continue
        if name in rules.sidecars:
            is_ours = has_own_sidecars
        else:
            is_ours = name == rules.index_name or is_written_beside_index(name, rules)
        (written if is_ours else foreign).append(name)
    written.sort(key=lambda name: (name != rules.index_name, name))
    return EntryContent(tuple(written), tuple(sorted(foreign)), tuple(sidecars))


def is_written_beside_index(name: str, rules: NamingRules) -> bool:
    """Return True for data files, temporary files and locks of a save.

    Killed saves leave these, so they are cordwood's also where there is no index.
    """
    if rules.is_data_file(name):
        return True
    of_file = temporary_of(name)
    if of_file is not None and rules.is_data_file(of_file):  # a data file that was copied
        return True
    return any(_is_temporary(name, small) for small in (rules.index_name, *rules.sidecars))


def _is_temporary(name: str, small: str) -> bool:
    """Return True for a temporary file, a removal list or the lock of an index or a sidecar."""
    if name == f"{temporary_prefix(small)}lock":
        return True
    return temporary_pattern(small, "(?:tmp|gc)").fullmatch(name) is not None


def refers_only_to_data(sidecar: bytes, rules: NamingRules) -> bool:
    """Return True if a sidecar file refers to data files of this format, and to no others."""
    return bool(data_files_in(sidecar, rules))


def data_files_in(sidecar: bytes, rules: NamingRules) -> list[str]:
    """Return the data files that a sidecar file refers to; none if it refers to others, too."""
    names = [each.decode() for each in re.findall(rb'"([!-~]+\.safetensors)"', sidecar)]
    return names if all(map(rules.is_data_file, names)) else []
