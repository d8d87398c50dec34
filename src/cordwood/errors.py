"""Errors of cordwood. Each class also inherits the builtin error that a caller would catch."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.message_text import printable

__all__ = [
    "CordwoodError",
    "CorruptionError",
    "FormatError",
    "IncompleteCheckpointError",
    "LimitError",
    "LossError",
    "MismatchError",
    "NotACheckpointError",
    "PendingSaveError",
    "PrefixError",
    "ProcessError",
    "StepError",
    "StorageError",
    "TruncatedError",
    "UnsupportedFormatError",
    "UnsupportedLeafError",
]


class CordwoodError(Exception):
    """The base class of all errors of cordwood."""

    def __str__(self) -> str:
        # Messages contain names of leaves and paths, which may hold control characters.
        return printable(super().__str__())


class FormatError(CordwoodError, ValueError):
    """A file or buffer violates its format; the message names the byte offset."""


class TruncatedError(FormatError, EOFError):
    """A file ends too early: its header or index announces more data."""


class LimitError(FormatError):
    """A count, depth or length exceeds a named limit."""


class CorruptionError(CordwoodError, ValueError):
    """Stored bytes do not match the digest that was saved with them."""


class IncompleteCheckpointError(CordwoodError, FileNotFoundError):
    """A directory has no index: no save to it has finished, or it is not a checkpoint."""


class MismatchError(CordwoodError, ValueError):
    """The stored tree does not match the requested one; the message lists every difference."""


class UnsupportedLeafError(CordwoodError, TypeError):
    """A tree holds something that the format cannot store; the message names its key path."""


class UnsupportedFormatError(CordwoodError, ValueError):
    """No format reads or writes this path, or the format is read-only."""


class LossError(CordwoodError, ValueError):
    """A conversion would lose something that the format cannot store; the message lists it all."""


class NotACheckpointError(CordwoodError, FileExistsError):
    """`save` was asked to replace something that is not a checkpoint."""


class StorageError(CordwoodError, OSError):
    """A disk failed or is full: see `errno` and `filename`; the message names the operation."""


class PendingSaveError(CordwoodError, RuntimeError):
    """An earlier `save_async` failed, and its `wait` was never called."""


class PrefixError(CordwoodError, ValueError):
    """A directory has no item of the given prefix, or several items and no prefix is given."""


class StepError(CordwoodError, ValueError):
    """A step cannot be saved after the existing steps, or cannot be deleted."""


class ProcessError(CordwoodError, RuntimeError):
    """Processes of one save disagree, or one died, failed or never joined; the message names it."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count and its noun for a message: 1 byte, 2 bytes."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def no_prefix_message(prefixes: Sequence[str]) -> str:
    """Return the message for a missing prefix, with the available ones."""
    hint = ""
    if prefixes:
        one = repr(prefixes[0])
        hint = f"; name the tree: prefix={one} in Python, --prefix {one} for the command"
    return f"No prefix specified. Available prefixes: {list(prefixes)}{hint}"
