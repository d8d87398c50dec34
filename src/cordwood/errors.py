"""Errors of cordwood. Each class also inherits the builtin error that a caller would catch."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.did_you_mean import nearest_name
from cordwood.message_text import printable

__all__ = [
    "CordwoodError",
    "CorruptionError",
    "FileChangedError",
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
    """The base class of all errors of cordwood.

    Catch it, together with OSError for the errors of the operating system, around a save that may
    fail without ending the job.
    """

    def __str__(self) -> str:
        # Messages contain names of leaves and paths, which may hold control characters.
        return printable(super().__str__())


class FormatError(CordwoodError, ValueError):
    """A file or buffer violates its format; the message names the byte offset.

    The file is damaged, or another program wrote it. Run `cordwood info PATH` to see which format
    it is taken for. Copy it again from its source, or load an older checkpoint. If the format was
    recognised wrongly, pass `format=`.
    """


class TruncatedError(FormatError, EOFError):
    """A file ends too early: its header or index announces more data.

    A copy or a download was interrupted. Copy the file again, or load an older checkpoint.
    """


class LimitError(FormatError):
    """A count, depth or length exceeds a named limit.

    The limits stop files that would exhaust the memory. A compressed file may grow further if you
    pass a greater `max_bytes=`. docs/format.md lists the other limits; they are fixed.
    """


class CorruptionError(CordwoodError, ValueError):
    """Stored bytes do not match the digest that was saved with them.

    Some bytes changed after the save: a bad disk, a bad copy, a mixed-up file. `cordwood verify
    PATH` names everything that is damaged. Load an older checkpoint: `CheckpointManager.restore()`
    without a number takes the newest whole step. Undamaged leaves can still be loaded with
    `select=`.
    """


class FileChangedError(CordwoodError, OSError):
    """Another program changed a file while it was open: nothing that was read of it is returned.

    Open or load the file again, once the other program is done with it. Programs that write a new
    file and rename it over the old one, as cordwood does, do not cause this: the old file can be
    read to the end. On a network file system another machine may have removed the file, too (ESTALE
    in `errno`).
    """


class IncompleteCheckpointError(CordwoodError, FileNotFoundError):
    """A directory has no index: no save to it has finished, or it is not a checkpoint.

    If it is the root of a run, add the step (`run/100`, or `run/latest`). If a save
    was killed, load another step; `cordwood gc PATH` removes what the save has left.
    """


class MismatchError(CordwoodError, ValueError):
    """The stored tree does not match the requested one; the message lists every difference.

    For each difference the message says what accepts it: `cast=` for dtypes, `rename=` for names,
    `missing="keep"` and `extra="ignore"` for leaves that only one side has, `transpose=` for
    PyTorch's weights. Or give a `like` that is the model that was saved.

    Attributes:
        problems: all differences, a line for each; the message has the first 50. () for an error
            that is not about single leaves.
    """

    problems: tuple[str, ...] = ()


class UnsupportedLeafError(CordwoodError, TypeError):
    """A tree holds something that the format cannot store; the message names its key path.

    Remove functions and objects from the tree before saving (`equinox.filter(model,
    equinox.is_array)`), or save to a directory or a `.safetensors` file, which store more than
    msgpack.
    """


class UnsupportedFormatError(CordwoodError, ValueError):
    """No format reads or writes this path, or the format is read-only.

    Check the suffix of the path, or pass `format=`; the message lists the possible ones. A file of
    a newer version of cordwood, or a dtype of a newer ml_dtypes, needs an update of that package.
    """


class LossError(CordwoodError, ValueError):
    """A conversion would lose something that the format cannot store; the message lists it all.

    Choose another format, leave the leaves out with `select=`, or accept the loss with
    `lossy=True`.
    """


class NotACheckpointError(CordwoodError, FileExistsError):
    """`save` was asked to replace something that is not a checkpoint.

    Nothing was written. Choose another path, or move what is there away.
    """


class StorageError(CordwoodError, OSError):
    """A disk failed or is full: see `errno` and `filename`; the message names the operation.

    Free some space (`cordwood gc PATH` removes what killed saves have left), or save elsewhere;
    the checkpoint that was there is still complete. ETIMEDOUT: another process holds the lock of
    the directory. `cordwood doctor DIRECTORY` tests a file system.
    """


class PendingSaveError(CordwoodError, RuntimeError):
    """An earlier `save_async` failed, and its `wait` was never called.

    `__cause__` is the error of that save. Call `wait()` on each save, or read its `exception`;
    then save again.
    """


class PrefixError(CordwoodError, ValueError):
    """A directory has no item of the given prefix, or several items and no prefix is given.

    The message lists the items. Pass one of them: `prefix="params"`, or `--prefix params` to the
    command.
    """


class StepError(CordwoodError, ValueError):
    """A step cannot be saved after the existing steps, or cannot be deleted.

    Steps only go up: save with a higher number, or remove the later steps first with
    `CheckpointManager.delete_after`. A closed manager saves no more: save inside its `with` block.
    """


class ProcessError(CordwoodError, RuntimeError):
    """Processes of one save disagree, or one died, failed or never joined; the message names it.

    Look at the log of the process that the message names. All processes must call `save` with the
    same path and the same values; docs/processes.md says which calls need all of them. If a
    process died, restart the whole job.
    """


def newer_version_error(text: str, newest: int) -> UnsupportedFormatError:
    """Return the error for a file of a newer version; `text` is such as "version 2 is newer"."""
    return UnsupportedFormatError(f"{text} than this cordwood reads ({newest}); upgrade cordwood")


def no_prefix_message(prefixes: Sequence[str]) -> str:
    """Return the message for a missing prefix, with the available ones."""
    hint = ""
    if prefixes:
        one = repr(prefixes[0])
        hint = f"; name the tree: prefix={one} in Python, --prefix {one} for the command"
    return f"No prefix specified. Available prefixes: {list(prefixes)}{hint}"


def absent_prefix_message(prefix: str, prefixes: Sequence[str]) -> str:
    """Return the message for a prefix that no tree has, with the available ones."""
    close = nearest_name(prefix, prefixes)
    hint = f"; did you mean prefix={close!r}?" if close else "."
    return f"Prefix {prefix!r} not found{hint} Available: {list(prefixes)}"
