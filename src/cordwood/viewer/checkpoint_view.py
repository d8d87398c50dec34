"""The checkpoints that the viewer shows, opened on demand, and the resources of one of them.

One file: a checkpoint that is open is what its resources are made from.
"""

from __future__ import annotations

import math
import shlex
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.api.array_change import has_numbers
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.detect import detect
from cordwood.api.leaf_statistics import leaf_statistics
from cordwood.api.verify import verify
from cordwood.encoding.digests import DIGEST_BYTES, block_count
from cordwood.errors import CorruptionError, FileChangedError, IncompleteCheckpointError
from cordwood.formats.registry import by_name
from cordwood.formats.stored_step import number_in_name
from cordwood.index import (
    ARRAY_KINDS,
    Box,
    Index,
    Inline,
    Leaf,
    Naming,
    Piece,
    Source,
    Span,
    leaf_text,
    size_in_memory,
)
from cordwood.io.garbage_collector import gc_paused
from cordwood.io.progress import Report
from cordwood.keypath import format_path, format_paths, key_literal
from cordwood.message_text import counted, size_text
from cordwood.sharding.boxes import whole_box
from cordwood.viewer.json_columns import encode_columns

Kind: TypeAlias = Literal["checkpoint", "diff", "run"]

_MAX_OPEN = 4
_MAX_FILES = 4096
_MAX_VALUE = 200  # characters of a value in the list of leaves
_MAX_PIECES = 4096
_MAX_WHOLE_VALUE = 100_000  # characters
_MAX_VALUE_BYTES = 1 << 20
_MAX_NAMES = 100
_BINS = 48


class OpenArguments(NamedTuple):
    """The arguments of `cordwood.open` for each source."""

    format: str | None = None
    prefix: str | None = None
    scratch: str | None = None


@dataclass(eq=False)
class _Entry:
    """An open checkpoint, and the number of threads that use it."""

    checkpoint: Checkpoint | None = None
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False, repr=False)
class Sources:
    """The checkpoints that the viewer shows, by name; at most four are open and unused.

    Threads may use it at the same time.

    Attributes:
        kind: what was opened: one checkpoint, a difference of two, or a run.
        paths: the path of each source. The names are "a" and "b", or the entries of a run.
        root: the directory of a run; "" for checkpoints.
        arguments: how sources are opened.
    """

    kind: Kind
    paths: Mapping[str, str]
    root: str
    arguments: OpenArguments
    _entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)  # the last used last
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def path(self, name: str) -> str:
        """Return the path of a source. Raises KeyError with the names that there are."""
        try:
            return self.paths[name]
        except KeyError:
            names = ", ".join(list(self.paths)[:10])
            raise KeyError(f"there is no source {name!r:.80}; expected one of {names}") from None

    @contextmanager
    def checkpoint(self, name: str) -> Iterator[Checkpoint]:
        """Yield the open checkpoint of a source; it stays open at least until the block ends.

        A file that has changed since it was opened is opened again by the next call.
        Raises KeyError for a name that does not exist, and whatever `cordwood.open` does.
        """
        path = self.path(name)
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            entry.users += 1
            self._entries.move_to_end(name)
        try:
            with entry.opening:
                if entry.checkpoint is None:
                    entry.checkpoint = open_checkpoint(path, **self.arguments._asdict())
            yield entry.checkpoint
        except FileChangedError:
            with self._lock:  # the next request opens it again
                if self._entries.get(name) is entry:
                    del self._entries[name]
            raise
        finally:
            with self._lock:
                entry.users -= 1
                is_dropped = not entry.users and self._entries.get(name) is not entry
            if is_dropped and entry.checkpoint is not None:
                entry.checkpoint.close()
            self._close_unused(_MAX_OPEN)

    def _close_unused(self, most: int) -> None:
        """Close checkpoints that no thread uses, the least recently used first, down to few."""
        with self._lock:
            unused = [name for name, entry in self._entries.items() if not entry.users]
            count = max(0, len(self._entries) - most)
            taken = [self._entries.pop(name) for name in unused[:count]]
        for entry in taken:
            if entry.checkpoint is not None:
                entry.checkpoint.close()

    def list_steps(self) -> None:
        """List the steps of a run again: a job may save and delete some meanwhile.

        Raises FileNotFoundError if there are none any more.
        """
        detected = detect(self.root)
        self.paths = _paths_of(self.root, detected.steps)

    def close(self) -> None:
        """Close all checkpoints that no thread uses."""
        self._close_unused(0)


def _paths_of(root: str, steps: Sequence[str]) -> dict[str, str]:
    return {step: f"{root.rstrip('/')}/{step}" for step in steps}


def open_sources(path: str, other: str | None, arguments: OpenArguments) -> Sources:
    """Open what the viewer shows: a checkpoint, two, or the steps of a run.

    Each checkpoint is opened now, so that an error is raised here; the steps of a run are not.

    Raises:
        ValueError: one of two paths is a directory of steps.
        Exception: whatever `cordwood.open` raises.
    """
    paths = {"a": path} if other is None else {"a": path, "b": other}
    sources = Sources("checkpoint" if other is None else "diff", paths, "", arguments)
    for name, each in paths.items():
        try:
            with sources.checkpoint(name):
                pass
        except IncompleteCheckpointError:
            detected = detect(each)
            if detected.format != "steps":
                raise
            sources.close()
            if other is not None:
                raise ValueError(
                    f"{each}: expected a checkpoint to compare, found {detected.description}; "
                    f"name one of its steps, such as {each.rstrip('/')}/{detected.steps[-1]}"
                ) from None
            return Sources("run", _paths_of(each, detected.steps), each, arguments)
        except BaseException:
            sources.close()
            raise
    return sources


def start_view(sources: Sources, report: Report | None) -> dict[str, object]:  # noqa: ARG001
    """Return what was opened: the kind, the names of the sources and their paths."""
    paths = [sources.root] if sources.kind == "run" else list(sources.paths.values())
    given = {"--format": sources.arguments.format, "--prefix": sources.arguments.prefix}
    options = [word for name, text in given.items() if text is not None for word in (name, text)]
    return {
        "kind": sources.kind,
        "title": " and ".join(map(_title, paths)),
        "version": version("cordwood"),
        "sources": list(sources.paths),
        "paths": dict(sources.paths),
        "command": shlex.join(["cordwood", "view", *paths, *options]),
        "exported": False,
    }


def _title(path: str) -> str:
    """Return a short name of a checkpoint: that of its file, or of its run and its step.

    >>> _title("models/a.safetensors"), _title("runs/gpt2/100/")
    ('a.safetensors', 'gpt2/100')
    """
    rest, _, name = path.rstrip("/").rpartition("/")
    run = rest.rpartition("/")[2]
    return f"{run}/{name}" if run and number_in_name(name) is not None else name or path


def checkpoint_view(sources: Sources, report: Report | None, *, source: str) -> dict[str, object]:  # noqa: ARG001
    """Return sizes, metadata and files of a checkpoint, and its leaves column by column."""
    with sources.checkpoint(source) as checkpoint, gc_paused():
        index = checkpoint.index
        leaves = index.leaves
        shardings = list(dict.fromkeys(index.shardings.values()))
        dtype_bytes: Counter[str] = Counter()
        for leaf in leaves:
            dtype_bytes[dtype_text(leaf)] += size_in_memory(leaf)
        format = by_name(checkpoint.format)
        largest = sorted(index.sources, key=lambda each: -each.size_bytes)[:_MAX_FILES]
        return {
            "path": checkpoint.path,
            "format": checkpoint.format,
            "description": "" if format is None else format.description,
            "leaf_count": len(leaves),
            "size_bytes": sum(dtype_bytes.values()),
            "stored_bytes": sum([each.size_bytes for each in index.sources]),
            "dtypes": dtype_bytes,
            "digests": _digests(index),
            "metadata": dict(checkpoint.metadata),
            "files": [{"name": each.name, "size_bytes": each.size_bytes} for each in largest],
            "file_count": len(index.sources),
            "leaves": encode_columns(partial(_leaf_columns, index, shardings), len(leaves)),
            "shardings": shardings,
        }


def _leaf_columns(
    index: Index, shardings: Sequence[str], numbers: range
) -> dict[str, Sequence[object]]:
    """Return the columns of some leaves: of each, one row."""
    leaves = index.leaves[numbers.start : numbers.stop]
    paths = format_paths([leaf.key_path for leaf in leaves])
    number_of = {text: number for number, text in enumerate(shardings)}
    return {
        "path": paths,
        "keys": [split_path(path, index.naming) for path in paths],
        "kind": [leaf.kind for leaf in leaves],
        "dtype": [dtype_text(leaf) for leaf in leaves],
        "shape": [shape_of_value(leaf) for leaf in leaves],
        "size_bytes": [size_in_memory(leaf) for leaf in leaves],
        "value": [value_text(leaf, _MAX_VALUE) for leaf in leaves],
        "sharding": [
            number_of[index.shardings[i]] if i in index.shardings else -1 for i in numbers
        ],
    }


def split_path(path: str, naming: Naming) -> list[str]:
    """Return the keys of a key path as text; names that a format has joined are split.

    >>> split_path("params/w", "exact"), split_path("layers.0.w", "dotted")
    (['params', 'w'], ['layers', '0', 'w'])
    """
    if naming == "dotted":
        return path.split(".")
    if naming == "slashed":
        return path.replace("%2F", "/").split("/")
    return path.split("/")


def dtype_text(leaf: Leaf) -> str:
    """Return the dtype of an array, or the kind of any other leaf."""
    if leaf.kind == "prng_key":
        return f"key<{leaf.prng_impl}>"
    return leaf.dtype if leaf.kind in ARRAY_KINDS else leaf.kind


def value_text(leaf: Leaf, length: int) -> str | None:
    """Return the value of a leaf that the index holds, as text; None if it does not hold it."""
    if not isinstance(leaf.storage, Inline):
        return None
    return _literal(leaf.storage.value, length)


def _literal(value: Any, length: int) -> str:
    """Return a value as a Python literal of limited length, made of its beginning only."""
    text = key_literal(value[: length + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= length else f"{text[:length]}..."


def shape_of_value(leaf: Leaf) -> Sequence[int]:
    """Return the shape of an array; of PRNG keys, without the axis of their data."""
    return leaf.shape[:-1] if leaf.kind == "prng_key" else leaf.shape


def _digests(index: Index) -> str:
    """Return how many of the files have digests or checksums: "all", "some" or "none"."""
    checked = [is_checked(source) for source in index.sources if source.size_bytes]
    return "all" if all(checked) else "some" if any(checked) else "none"


def is_checked(source: Source) -> bool:
    """Return True if the bytes of a file have digests or checksums."""
    return source.digests is not None or source.header_digest is not None or bool(source.checksums)


def leaf_view(
    sources: Sources,
    report: Report | None,  # noqa: ARG001
    *,
    source: str,
    number: int,
) -> dict[str, object]:
    """Return the type of a leaf, how it was partitioned, and where its bytes are."""
    with sources.checkpoint(source) as checkpoint:
        leaf = leaf_at(checkpoint, number)
        index = checkpoint.index
        path = format_path(leaf.key_path)
        (located,) = checkpoint._reader.with_pieces([leaf])
        pieces = () if isinstance(located.storage, Inline) else located.storage.pieces
        parts = dict.fromkeys([box for piece in pieces for box in _boxes(piece, leaf.shape)])
        return {
            "number": number,
            "path": path,
            "keys": split_path(path, index.naming),
            "kind": leaf.kind,
            "dtype": dtype_text(leaf),
            "shape": shape_of_value(leaf),
            "size_bytes": size_in_memory(leaf),
            "weak_type": leaf.weak_type,
            "prng_impl": leaf.prng_impl,
            "value": _value(checkpoint, leaf),
            "sharding": index.shardings.get(number),
            "stored_shape": leaf.shape,
            "parts": [box._asdict() for box in islice(parts, _MAX_PIECES)],
            "part_count": len(parts),
            "pieces": [_piece(checkpoint, piece, leaf) for piece in pieces[:_MAX_PIECES]],
            "piece_count": len(pieces),
        }


def leaf_at(checkpoint: Checkpoint, number: int) -> Leaf:
    """Return a leaf by its position. Raises KeyError if there are not so many."""
    leaves = checkpoint.index.leaves
    if number >= len(leaves):
        count = counted(len(leaves), "leaf", "leaves")
        raise KeyError(f"{checkpoint.path} has {count}; there is no leaf number {number}")
    return leaves[number]


def _boxes(piece: Piece, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield the boxes of an array that a piece holds."""
    if isinstance(piece.where, Box):
        yield piece.where
    else:
        yield from span_boxes(piece.where, shape)


def span_boxes(span: Span, shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield boxes that make up a span of elements of an array.

    >>> [(box.start, box.stop) for box in span_boxes(Span(2, 9), (4, 3))]
    [((0, 2), (1, 3)), ((1, 0), (3, 3))]
    """
    start, stop = span
    if start >= stop:
        return
    if not shape:
        yield whole_box(shape)
        return
    row = math.prod(shape[1:])
    first, begin = divmod(start, row)
    last, end = divmod(stop, row)
    if begin and first == last:
        yield from _in_row(first, Span(begin, end), shape)
        return
    if begin:
        yield from _in_row(first, Span(begin, row), shape)
        first += 1
    if first < last:
        yield Box((first, *([0] * (len(shape) - 1))), (last, *shape[1:]))
    if end:
        yield from _in_row(last, Span(0, end), shape)


def _in_row(row: int, span: Span, shape: tuple[int, ...]) -> Iterator[Box]:
    for start, stop in span_boxes(span, shape[1:]):
        yield Box((row, *start), (row + 1, *stop))


def _piece(checkpoint: Checkpoint, piece: Piece, leaf: Leaf) -> dict[str, object]:
    """Return the place of a piece: its box, file, byte range and digest."""
    boxes = list(_boxes(piece, leaf.shape))
    box = boxes[0] if len(boxes) == 1 else None
    return {
        "start": None if box is None else box.start,
        "stop": None if box is None else box.stop,
        "file": checkpoint.index.sources[piece.source].name,
        "offset": piece.offset,
        "length": piece.length,
        "digest": _digest(checkpoint, piece),
    }


def _digest(checkpoint: Checkpoint, piece: Piece) -> str | None:
    """Return the digest of the bytes of a piece as text; None if there is none."""
    source = checkpoint.index.sources[piece.source]
    digests = checkpoint._reader.digests[piece.source]
    if digests is None:
        at = piece.offset
        crcs = [each.crc32 for each in source.checksums if each.start <= at < each.stop]
        return f"crc32 {crcs[0]:08x}" if crcs else None
    if not piece.length or digests.block_bytes <= 0:
        return None
    first = max(0, piece.offset - digests.start) // digests.block_bytes
    stop = block_count(piece.offset + piece.length - digests.start, digests.block_bytes)
    value = digests.values[first * DIGEST_BYTES : (first + 1) * DIGEST_BYTES].hex()
    more = stop - first - 1
    if more <= 0:
        return f"xxh3-128 {value}"
    blocks = counted(more, "more block", "more blocks")
    return f"xxh3-128 {value} and {blocks} of {size_text(digests.block_bytes)}"


def _value(checkpoint: Checkpoint, leaf: Leaf) -> str | None:
    """Return a Python value as text; None for an array."""
    if leaf.kind in ARRAY_KINDS and not (isinstance(leaf.storage, Inline) and not leaf.shape):
        return None
    if isinstance(leaf.storage, Inline):
        value = leaf.storage.value
    else:
        length = sum([piece.length for piece in leaf.storage.pieces])
        if length > _MAX_VALUE_BYTES:
            return f"({size_text(length)}: too long to show)"
        value = checkpoint[format_path(leaf.key_path)].load(to="numpy")
    return _literal(value, _MAX_WHOLE_VALUE)


def statistics_view(
    sources: Sources, report: Report | None, *, source: str, number: int, read: str
) -> dict[str, object]:
    """Return statistics of the elements of a leaf.

    Raises TypeError for a leaf that is no array of numbers.
    """
    with sources.checkpoint(source) as checkpoint:
        leaf = leaf_at(checkpoint, number)
        path = format_path(leaf.key_path)
        if not has_numbers(leaf):
            raise TypeError(
                f"{path}: there are no statistics of {leaf_text(leaf)}; expected an array of "
                "numbers"
            )
        summary = leaf_statistics(
            checkpoint,
            path,
            bins=_BINS,
            sampled=read != "all",
            with_heat_map=bool(leaf.shape),
            progress=report,
        )
    item_bytes = size_in_memory(leaf) // (math.prod(leaf.shape) or 1)
    histogram = {"low": summary.min, "high": summary.max, "counts": summary.histogram}
    heat = None
    if summary.heat is not None and summary.heat.values:
        # Four digits make it half as long.
        values = [None if value is None else float(f"{value:.4g}") for value in summary.heat.values]
        heat = {**summary.heat._asdict(), "values": values}
    return {
        **summary._asdict(),
        "read_bytes": summary.size * item_bytes,
        "read_size": summary.size,
        "size": math.prod(leaf.shape),
        "histogram": None if summary.min is None else histogram,
        "first": [f"{n:.6g}" if isinstance(n, float) else str(n) for n in summary.first],
        "heat": heat,
    }


def verify_view(sources: Sources, report: Report | None, *, source: str) -> dict[str, object]:
    """Check every byte of a source against its digest, and return the result."""
    with sources.checkpoint(source) as checkpoint:
        unchecked = [each.name for each in checkpoint.index.sources if not is_checked(each)]
    try:
        result = verify(sources.path(source), progress=report, format=sources.arguments.format)
        problems, sizes = [], (result.verified_bytes, result.unverified_bytes)
    except CorruptionError as e:
        problems, sizes = str(e).split("\n"), (0, 0)
    return {
        "ok": not problems,
        "checked_bytes": sizes[0],
        "unchecked_bytes": sizes[1],
        "text": problems[0] if problems else str(result),
        "problems": problems,
        "without_digests": unchecked[:_MAX_NAMES],
    }
