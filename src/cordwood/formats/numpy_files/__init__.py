"""numpy's files, read only: .npy, .npz (a zip archive of .npy), and equinox's .eqx (.npy in a row).

Each has a module with a `read_index`; docs/format.md says what is read of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import CordwoodError, FileChangedError
from cordwood.formats.format_protocol import Match, Opened, OpenOptions, Place
from cordwood.storage.locations import Location, require_local

if TYPE_CHECKING:
    from cordwood.index import Index
    from cordwood.io.open_files import ReadableFile

_NPY, _ZIP, _EMPTY_ZIP = b"\x93NUMPY", b"PK", b"PK\5\6"


class NpzFormat:
    """Zip archives of numpy arrays, read only."""

    name = "npz"
    description = "numpy arrays in a zip archive"
    suffixes: tuple[str, ...] = (".npz",)
    index_name = ""

    def matches(self, place: Place) -> Match:
        if place.head.startswith(_EMPTY_ZIP):
            return Match.YES
        if place.file is None or not place.head.startswith(_ZIP):
            return Match.NO
        has_arrays = any(name.endswith(".npy") for name in members_of_zip(place.file))
        return Match.YES if has_arrays else Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.numpy_files.read_npz import read_index
        from cordwood.formats.single_file import open_file

        del item
        read = partial(read_index, max_bytes=options.max_bytes)
        return open_file(require_local(location), read, name=self.name)


class ArraysFormat(NamedTuple):
    """Files of .npy arrays, read only: of one array, or of equinox, one after another."""

    name: str
    description: str
    suffixes: tuple[str, ...]
    unreadable: Match  # of a file that begins as an array, and cannot be read
    index_name: str = ""

    def matches(self, place: Place) -> Match:
        from cordwood.formats.single_file import can_read

        if place.file is None:
            return Match.NO
        if not place.head.startswith(_NPY):
            from cordwood.formats.numpy_files.read_npy import line_in_front

            if self.name != "eqx" or line_in_front(place.head) is None:
                return Match.NO
        return Match.YES if can_read(place.file, self.read_index) else self.unreadable

    def read_index(self, file: ReadableFile) -> Index:
        from cordwood.formats.numpy_files import read_npy

        return read_npy.read_eqx_index(file) if self.name == "eqx" else read_npy.read_index(file)

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.single_file import open_file

        del item, options
        return open_file(require_local(location), self.read_index, name=self.name)


def members_of_zip(file: ReadableFile) -> list[str]:
    """Return the names of the members of a zip archive; [] if it is damaged."""
    from cordwood.formats.numpy_files.read_npz import read_members

    try:
        return [member.name for member in read_members(file)]
    except FileChangedError:
        raise
    except CordwoodError:
        return []


NPZ = NpzFormat()
# A file that only begins as an array may be of equinox, or damaged.
NPY = ArraysFormat("npy", "one numpy array", (".npy",), Match.MAYBE)
EQX = ArraysFormat("eqx", "an equinox tree without names", (".eqx",), Match.NO)
