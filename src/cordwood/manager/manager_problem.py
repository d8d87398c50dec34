"""A failure beside the saves of a manager, which fails none of them."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.message_text import printable
from cordwood.public_names import document_fields


@document_fields
class ManagerProblem(NamedTuple):
    """A failure of the work beside saves, such as a copy to the mirror; no save fails by it.

    Attributes:
        step: the step that it is about; None if it is about no step.
        what: what was to be done.
        error: why it was not.
    """

    step: int | None
    what: str
    error: Exception

    def __str__(self) -> str:
        return printable(f"{self.what}: {type(self.error).__name__}: {self.error}")
