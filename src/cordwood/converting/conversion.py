"""The result of a conversion."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.message_text import counted, first_names, printable, size_text
from cordwood.public_names import document_fields

MAX_NAMED = 10


@document_fields
class Conversion(NamedTuple):
    """The result of `convert`. As a string: a line for each loss, then one for the conversion.

    Attributes:
        source, destination: the paths.
        source_format, format: the names of their formats.
        leaves: how many leaves were written; 0 if this was a part.
        size_bytes: the size of the elements of all arrays as written, in bytes; of a part, its own.
        lost: descriptions of what the format cannot store, and of leaves that cannot be read; ()
            unless `lossy=True`.
        prefixes: the prefixes of the trees that were written; "" for a tree without one.
        left_out: what else the source holds and was not converted, in words: other trees, where
            `select` is of one; items of Orbax that are no trees; files beside weights of the hub.
        files: the names of files that were copied from a directory of the hub to another one.
        part: the part that this call has done; None: all.
        part_files: how many data files are of that part; 0 without a part.
    """

    source: str
    destination: str
    source_format: str
    format: str
    leaves: int
    size_bytes: int
    lost: tuple[str, ...]
    prefixes: tuple[str, ...] = ("",)
    left_out: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    part: tuple[int, int] | None = None
    part_files: int = 0

    def __str__(self) -> str:
        lines = [f"lost: {line}" for line in self.lost]
        if self.left_out:
            lines.append(f"not converted: {first_names(self.left_out, MAX_NAMED)}")
        files = f"; copied: {first_names(self.files, MAX_NAMED)}" if self.files else ""
        trees = f"{len(self.prefixes)} trees, " if len(self.prefixes) > 1 else ""
        lines.append(
            f"{self.destination}: {trees}{self._amount()}, from {self.source_format} to "
            f"{self.format}{files}"
        )
        return printable("\n".join(lines))

    def _amount(self) -> str:
        """Return how much was written, as text."""
        if self.part is None:
            return f"{counted(self.leaves, 'leaf', 'leaves')}, {size_text(self.size_bytes)}"
        amount = "nothing falls to this part"
        if self.part_files:
            amount = f"{counted(self.part_files, 'file')}, {size_text(self.size_bytes)} written"
        return f"part {self.part[0]}/{self.part[1]}: {amount}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import result_html

        fields = [
            ("from", f"{self.source} ({self.source_format})"),
            ("to", f"{self.destination} ({self.format})"),
            ("size", self._amount()),
            ("trees", ", ".join(filter(None, self.prefixes))),
        ] + [("lost", line) for line in self.lost]
        fields += [("not converted", ", ".join(self.left_out)), ("copied", ", ".join(self.files))]
        return result_html("converted", self.destination, fields)
