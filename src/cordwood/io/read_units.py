"""Units of reading: ranges of a file that one thread reads, verifies and scatters.

A unit is not a leaf: a digest block rarely begins or ends where a leaf does, and neighbours in a
file belong to different buffers. The thread that reads a unit scatters it over its buffers, and
hashes its blocks while they are in the CPU cache.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.encoding.digests import check_coverage
from cordwood.errors import TruncatedError
from cordwood.index import Digests
from cordwood.io.check_digests import check_blocks
from cordwood.io.memory.buffers import Buffer, PageSize, ScratchBuffer, advise_small
from cordwood.io.open_files import ReadableFile
from cordwood.io.read_from_holders import read_from_holders
from cordwood.io.source_digests import SourceDigests
from cordwood.io.strided_copy import strided_copy
from cordwood.plan.load_plan import LoadPlan, Move, Scatter

_UNIT_BYTES = 4 << 20
_REQUEST_BYTES = 8 << 20  # a unit where each read is a request
_GAP_BYTES = 64 << 10  # a smaller gap between moves is cheaper to read than to skip
SMALL_MOVE_BYTES = 16 << 10  # below this on average, one read and many copies beat a long iovec


class _ReadLayer(NamedTuple):
    """Moves from one source whose ranges do not overlap; adjacent ones are merged."""

    source: int
    starts: list[int]  # file offsets, ascending
    stops: list[int]
    targets: list[int | Scatter]  # buffers, by number, or scatters
    positions: list[int]


class _Unit(NamedTuple):
    """A byte range [start, stop) of a source that one thread reads."""

    layer: _ReadLayer
    start: int
    stop: int
    first: int  # the moves that overlap it: positions first to last - 1 in the layer
    last: int
    digests: Digests | None  # the unit is made of whole blocks of these


class FreshPages:
    """The untouched buffers of a load, and the choice between small and huge pages for them."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._untouched = [buffer.untouched for buffer in buffers]
        self._choice = PageSize()

    def read(self, file: ReadableFile, unit: _Unit, parts: list[memoryview]) -> None:
        """Read a unit straight into buffers, with pages of the size that is faster now."""
        small = self._choice.is_small
        layer = unit.layer
        for i in range(unit.first, unit.last) if small else ():
            buffer = layer.targets[i]
            assert isinstance(buffer, int)
            pages = self._untouched[buffer]
            if pages is not None:
                shift = layer.positions[i] - layer.starts[i]
                start, stop = max(layer.starts[i], unit.start), min(layer.stops[i], unit.stop)
                advise_small(pages, start + shift, stop + shift)
        begin = time.thread_time_ns()  # not the time of other threads, nor of a disk
        file.read_into(unit.start, parts)
        self._choice.record_read(unit.stop - unit.start, time.thread_time_ns() - begin, small=small)


def read_moves(
    moves: Sequence[Move],
    target: memoryview,
    files: Sequence[ReadableFile],
    *,
    digests: Sequence[Digests | None],
    scratch: ScratchBuffer,
) -> None:
    """Execute moves to one buffer in this thread, and verify them. Raises as `execute_load` does.

    Args:
        moves: moves to buffer 0, sorted by source and offset.
        target: the memory of buffer 0.
        files: the sources, open.
        digests: of each file, or None where it has none.
        scratch: memory for the bytes of whole blocks that the moves do not need.
    """
    if sum(move.length for move in moves) != len(target):
        raise ValueError(f"{len(moves)} moves do not fill {len(target)} bytes")
    plan = LoadPlan((len(target),), tuple(moves), ())
    for unit in all_units(layers_of(plan, files), files, digests, verify=True):
        read_unit(unit, files, [target], scratch, None)


def all_units(
    layers: Sequence[_ReadLayer],
    files: Sequence[ReadableFile],
    digests: Sequence[Digests | None],
    *,
    verify: bool,
) -> list[_Unit]:
    """Return the units of all layers, in order."""
    units: list[_Unit] = []
    if verify and isinstance(digests, SourceDigests):
        digests.read_ahead({layer.source for layer in layers}, files)
    for layer in layers:
        layer_digests = digests[layer.source] if verify else None
        file = files[layer.source]
        if layer_digests is not None:
            check_coverage(file.name, file.size_bytes, layer_digests)
        unit_bytes = _REQUEST_BYTES if file.latency_bound else _UNIT_BYTES
        units += _units(layer, file, layer_digests, unit_bytes)
    return units


def layers_of(plan: LoadPlan, files: Sequence[ReadableFile]) -> list[_ReadLayer]:
    """Check every move, merge adjacent ones, and put moves that overlap into separate layers."""
    sizes = plan.buffers
    layers: list[_ReadLayer] = []
    todo: Sequence[Move] = plan.moves
    while todo:
        overlapping: list[Move] = []
        layer = _ReadLayer(todo[0].source, [], [], [], [])
        end, file_size = 0, files[layer.source].size_bytes
        _, starts, stops, targets, positions = layer
        # The place of a move that would extend the last one.
        last_target: int | Scatter | None = None
        last_position = 0
        for move in todo:
            source, offset, length, target, position = move
            if length == 0:
                continue
            if source != layer.source:
                if starts:
                    layers.append(layer)
                layer = _ReadLayer(source, [], [], [], [])
                _, starts, stops, targets, positions = layer
                end, last_target, file_size = 0, None, files[source].size_bytes
            stop = offset + length
            if offset < end:
                overlapping.append(move)
                continue
            if stop > file_size:
                raise TruncatedError(
                    f"{files[source].name}: expected {length} bytes at offset {offset}, but the "
                    f"file ends at {file_size}; copy or save it again"
                )
            size = sizes[target] if isinstance(target, int) else position + length
            if length < 0 or position < 0 or position + length > size:
                raise ValueError(f"{move} does not fit its buffer of {size} bytes")
            if offset == end and target == last_target and position == last_position:
                stops[-1] = stop
            else:
                starts.append(offset)
                stops.append(stop)
                targets.append(target)
                positions.append(position)
            end, last_target, last_position = stop, target, position + length
        if starts:
            layers.append(layer)
        if len(overlapping) == len(todo):
            raise ValueError(f"a move begins before its file does: {todo[0]}")
        todo = overlapping
    return layers


def _units(
    layer: _ReadLayer, file: ReadableFile, digests: Digests | None, unit_bytes: int
) -> list[_Unit]:
    """Divide the ranges of a layer into units of that size, of whole blocks if it has digests.

    A unit ends at the end of a tile, if it has one: threads would wait for a tile that another one
    makes.
    """
    starts, stops, size_bytes = layer.starts, layer.stops, file.size_bytes
    floor = digests.start if digests is not None else size_bytes  # no digest covers what is before
    block = digests.block_bytes if digests is not None else 1
    gap = _GAP_BYTES if digests is None else 0
    runs: list[list[int]] = []  # start and stop of each range to read
    for start, stop in zip(starts, stops, strict=True):
        if digests is not None:
            if start > floor:
                start -= (start - floor) % block
            if stop > floor:
                stop = min(stop + (floor - stop) % block, size_bytes)
        if runs and start <= runs[-1][1] + gap:
            runs[-1][1] = max(runs[-1][1], stop)
        else:
            runs.append([start, stop])
    step = max(block, unit_bytes // block * block)
    units: list[_Unit] = []
    for run_start, run_stop in runs:
        for start, stop, size, unit_digests in (
            (run_start, min(run_stop, floor), unit_bytes, None),
            (max(run_start, floor), run_stop, step, digests),
        ):
            at = start
            while at < stop:
                to = _end_of_unit(file.tile_ends, at, min(at + size, stop))
                first, last = bisect_right(stops, at), bisect_left(starts, to)
                units.append(_Unit(layer, at, to, first, last, unit_digests))
                at = to
    return units


def _end_of_unit(ends: Sequence[int], start: int, stop: int) -> int:
    """Return the last end of a tile after `start`, and at most `stop`; `stop` if there is none."""
    number = bisect_right(ends, stop)
    return ends[number - 1] if number and ends[number - 1] > start else stop


def read_unit(
    unit: _Unit,
    files: Sequence[ReadableFile],
    buffers: list[memoryview],
    scratch: ScratchBuffer,
    fresh: FreshPages | None,
) -> None:
    """Read a unit, scatter it over its buffers, and check its blocks."""
    file = files[unit.layer.source]
    read_from_holders(file, lambda: _read_and_check(unit, file, buffers, scratch, fresh))


def _read_and_check(
    unit: _Unit,
    file: ReadableFile,
    buffers: list[memoryview],
    scratch: ScratchBuffer,
    fresh: FreshPages | None,
) -> None:
    layer, start, stop, first, last, digests = unit
    size = stop - start
    parts: list[memoryview]
    is_small = size < (last - first) * SMALL_MOVE_BYTES
    if is_small or Scatter in set(map(type, layer.targets[first:last])):
        whole = scratch.view(size)
        file.read_into(start, [whole])
        _copy_out(whole, unit, buffers)
        parts = [whole]
    else:
        parts = _scattered(unit, buffers, scratch)
        if fresh is None:
            file.read_into(start, parts)
        else:
            fresh.read(file, unit, parts)
    if digests is not None:
        check_blocks(file.name, start, parts, digests)


def _copy_out(whole: memoryview, unit: _Unit, buffers: list[memoryview]) -> None:
    """Copy the bytes of a unit to their buffers. The loop may run 20,000 times: keep it simple."""
    layer, start, stop, first, last, _ = unit
    moves = zip(
        layer.starts[first:last],
        layer.stops[first:last],
        layer.targets[first:last],
        layer.positions[first:last],
        strict=True,
    )
    for a, b, target, at in moves:
        if a < start or b > stop:  # the first and the last may reach beyond the unit
            at += max(a, start) - a
            a, b = max(a, start), min(b, stop)
        if isinstance(target, Scatter):
            strided_copy(target, whole[a - start : b - start], at, buffers)
            continue
        buffers[target][at : at + b - a] = whole[a - start : b - start]


def _scattered(unit: _Unit, buffers: list[memoryview], scratch: ScratchBuffer) -> list[memoryview]:
    """Return views for all bytes of a unit, in file order: of the buffers, and scratch for gaps."""
    layer, start, stop, first, last, _ = unit
    parts: list[memoryview] = []
    spare = scratch.view(0)
    if (
        first == last
        or layer.starts[first] > start
        or layer.stops[last - 1] < stop
        or (last - first > 1)
    ):
        spare = scratch.view(stop - start)
    here = start
    for i in range(first, last):
        a, b = layer.starts[i], min(layer.stops[i], stop)
        at = layer.positions[i]
        if a < here:
            a, at = here, at + here - a
        if a > here:
            parts.append(spare[here - start : a - start])
        target = layer.targets[i]
        assert isinstance(target, int)
        parts.append(buffers[target][at : at + b - a])
        here = b
    if here < stop:
        parts.append(spare[here - start : stop - start])
    return parts
