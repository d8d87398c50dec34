"""The result of a verification."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.formats.table import ZARR_TREE
from cordwood.message_text import counted, first_names, printable, size_text
from cordwood.public_names import document_fields

_MAX_NAMED = 5  # leaves of an Orbax checkpoint that lack chunks


@document_fields
class Verification(NamedTuple):
    """The result of `verify` for a checkpoint without damage. As a string, one line.

    Attributes:
        path: the checkpoint.
        format: the name of its format.
        leaves: the number of its leaves.
        verified_bytes: the number of bytes that were read and match a digest or checksum.
        unverified_bytes: the number of bytes without a digest, or that the sample left out.
        unstored_chunks: for Orbax and zarr trees, the number of chunks that are not stored, which
            are read as zeros or as the fill value.
        unstored_leaves: the key paths of their leaves.
        stale: the names of files beside the index that are still those of an earlier save, because
            this one was killed at its very end. The checkpoint is whole, and so is the earlier one
            for the tools that read such a file, `model.safetensors.index.json`. `gc` and the next
            save write it again.
    """

    path: str
    format: str
    leaves: int
    verified_bytes: int
    unverified_bytes: int
    unstored_chunks: int = 0
    unstored_leaves: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.path}: {self._verdict}: {counted(self.leaves, 'leaf', 'leaves')}, "
            f"{size_text(self.verified_bytes)} verified"
        )
        if self.unverified_bytes:
            text += f", {size_text(self.unverified_bytes)} not read or without a digest"
        if self.unstored_chunks:
            leaves = first_names(self.unstored_leaves, _MAX_NAMED)
            fill = "the fill value" if self.format == ZARR_TREE.name else "zeros"
            text += (
                f", {counted(self.unstored_chunks, 'chunk')} not stored and read as {fill} "
                f"({leaves})"
            )
        if self.stale:
            text += (
                f"; stale: {first_names(self.stale, _MAX_NAMED)}, by which other tools read the "
                "tree of an earlier save: gc (cordwood gc) writes it again"
            )
        return printable(text)

    def __repr__(self) -> str:
        return str(self)

    def of_part(self, checked_bytes: int) -> Verification:
        """Return the result of a call that has read a part of the bytes only."""
        total = self.verified_bytes + self.unverified_bytes
        return self._replace(verified_bytes=checked_bytes, unverified_bytes=total - checked_bytes)

    @property
    def _verdict(self) -> str:
        if self.unverified_bytes and not self.verified_bytes:
            if not self.leaves:
                return "nothing was read"  # it is of another part
            return "no damage to the structure, and no digests"
        return "no damage"

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import result_html

        verified, unverified = self.verified_bytes, self.unverified_bytes
        fields = [
            ("format", self.format),
            ("leaves", f"{self.leaves:,}"),
            ("verified", size_text(verified)),
            ("not read or without a digest", size_text(unverified) if unverified else ""),
            ("chunks not stored", f"{self.unstored_chunks:,}" if self.unstored_chunks else ""),
            ("of the leaves", ", ".join(self.unstored_leaves[:_MAX_NAMED])),
            ("stale", ", ".join(self.stale)),
        ]
        return result_html(self._verdict, self.path, fields)
