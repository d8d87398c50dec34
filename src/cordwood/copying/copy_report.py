"""The result of a copy."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.message_text import counted, printable, size_text
from cordwood.public_names import document_fields


@document_fields
class CopyReport(NamedTuple):
    """The result of `copy`.

    Attributes:
        source, destination: the paths.
        steps: the names of the steps that were copied; ("",) for one checkpoint.
        steps_there: the names of the steps that the destination had already.
        files: how many files were written.
        copied_bytes: their size.
        skipped_bytes: the size of the files that the destination had already.
        seconds: the time it took.
        part: the part that this call has done; None: all.
    """

    source: str
    destination: str
    steps: tuple[str, ...]
    steps_there: tuple[str, ...]
    files: int
    copied_bytes: int
    skipped_bytes: int
    seconds: float
    part: tuple[int, int] | None = None

    def __str__(self) -> str:
        parts = [counted(self.files, "file"), f"{size_text(self.copied_bytes)} copied"]
        if self.part is not None and not self.files + self.skipped_bytes:
            parts = ["nothing falls to this part"]
        if self.skipped_bytes:
            parts.append(f"{size_text(self.skipped_bytes)} were there")
        steps = [name for name in (*self.steps, *self.steps_there) if name]
        if steps:
            skipped = len(self.steps_there)
            text = counted(len(self.steps), "step")
            parts.insert(0, f"{text}, {skipped} more were there" if skipped else text)
        part = "" if self.part is None else f"part {self.part[0]}/{self.part[1]}: "
        return printable(f"{self.destination}: {part}{', '.join(parts)}, in {self.seconds:.1f} s")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import result_html

        fields = [
            ("from", self.source),
            ("to", self.destination),
            ("steps", ", ".join(filter(None, self.steps))),
            ("steps that were there", ", ".join(filter(None, self.steps_there))),
            ("files", f"{self.files:,}"),
            ("copied", size_text(self.copied_bytes)),
            ("was there", size_text(self.skipped_bytes) if self.skipped_bytes else ""),
        ]
        return result_html("copied", self.destination, fields)
