"""What can go wrong. Each class also inherits the builtin that a caller would catch."""

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
    """The base of every error that cordwood raises on its own account."""

    def __str__(self) -> str:
        # Messages name leaves and paths, which may hold control characters.
        return printable(super().__str__())


class FormatError(CordwoodError, ValueError):
    """A file or buffer is not what its format says; the message names the byte offset."""


class TruncatedError(FormatError, EOFError):
    """A file ends before what it promises."""


class LimitError(FormatError):
    """A count, depth or length passes a named limit."""


class CorruptionError(CordwoodError, ValueError):
    """Stored bytes do not match the digest that was saved with them."""


class IncompleteCheckpointError(CordwoodError, FileNotFoundError):
    """A directory has no index: no save to it has finished, or it is no checkpoint."""


class MismatchError(CordwoodError, ValueError):
    """What is stored does not fit the tree asked for; the message lists every difference."""


class UnsupportedLeafError(CordwoodError, TypeError):
    """A tree holds something that the format cannot carry; the message names its key path."""


class UnsupportedFormatError(CordwoodError, ValueError):
    """No reader or writer is known for a path, or it only reads."""


class LossError(CordwoodError, ValueError):
    """A format has no place for something that is to be converted; the message lists all of it."""


class NotACheckpointError(CordwoodError, FileExistsError):
    """`save` was asked to replace something that is not a checkpoint."""


class StorageError(CordwoodError, OSError):
    """A disk failed or is full: `errno` and `filename` say which, the message what was going on."""


class PendingSaveError(CordwoodError, RuntimeError):
    """An earlier `save_async` failed, and nobody called its `wait`."""


class PrefixError(CordwoodError, ValueError):
    """A directory holds no item of the prefix asked for, or several and none was asked for."""


class StepError(CordwoodError, ValueError):
    """A step cannot be saved after those that are there, or cannot be deleted."""


class ProcessError(CordwoodError, RuntimeError):
    """Processes that save together do not agree, or one died, failed or never came; it is named."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count and its noun, for a message: 1 byte, 2 bytes."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def no_prefix_message(prefixes: Sequence[str]) -> str:
    """Return what to say where a tree has to be named, and was not."""
    hint = ""
    if prefixes:
        one = repr(prefixes[0])
        hint = f"; name the tree: prefix={one} in Python, --prefix {one} for the command"
    return f"No prefix specified. Available prefixes: {list(prefixes)}{hint}"
