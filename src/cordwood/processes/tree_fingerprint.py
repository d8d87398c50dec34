"""Do all processes hold the same tree? What differs is named before anything is written.

Leaves that jax spreads over processes must be spread alike on all. Any other leaf, which each
process holds for itself (numpy arrays, Python values, arrays on its own devices), must have
one value: process 0's is saved.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError, counted
from cordwood.index import LeafSpec
from cordwood.keypath import format_path
from cordwood.processes.join_messages import named
from cordwood.processes.rendezvous import Rendezvous
from cordwood.sharding.shard_grid import ShardGrid
from cordwood.tree.structure import Structure

_HALF = 8  # bytes of a digest: what a leaf is, and then what it holds
_PRINT = 2 * _HALF
_MAX_EXPLAINED = 64  # processes that say how they differ
_MAX_LINES = 20


def fingerprints(
    structure: Structure,
    specs: Sequence[LeafSpec],
    shards: Sequence[ShardGrid],
    local: Mapping[int, np.ndarray],
) -> list[bytes]:
    """What a process holds, short enough to be sent: the structure, then each leaf.

    Args:
        structure, specs: the tree.
        shards: how each leaf is spread.
        local: the elements of each array that this process holds for itself, by leaf.
    """
    spread: dict[int, bytes] = {}  # by identity: equal leaves share theirs
    prints = [digest_of(repr(tuple(map(tuple, structure))).encode("utf-8", "surrogatepass"))]
    for leaf, (spec, shard) in enumerate(zip(specs, shards, strict=True)):
        where = spread.get(id(shard))
        if where is None:
            where = spread[id(shard)] = digest_of(repr(tuple(shard)).encode())
        what = repr(tuple(spec._replace(value=None))).encode("utf-8", "surrogatepass")
        if leaf in local:
            elements = np.ascontiguousarray(local[leaf]).reshape(-1)
            value = digest_of(elements.view(np.uint8).data)
        else:
            value = digest_of(repr(spec.value).encode("utf-8", "surrogatepass"))
        prints.append(digest_of(what + where)[:_HALF] + value[:_HALF])
    return prints


def joined_fingerprints(trees: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return the `fingerprints` of several trees as those of one that holds them in this order."""
    if len(trees) == 1:
        return trees[0]
    structure = digest_of(b"".join([prints[0] for prints in trees]))
    return [structure, *[each for prints in trees for each in prints[1:]]]


def require_agreement(
    rendezvous: Rendezvous, prints: Sequence[bytes], specs: Sequence[LeafSpec]
) -> None:
    """Meet for one round, or for two where something differs.

    Args:
        rendezvous: of all processes.
        prints: this process's `fingerprints`.
        specs: its leaves.

    Raises ProcessError on all processes; it names what differs, and on which.
    """

    def compare(values: list[bytes]) -> bytes:
        odd = [process for process, value in enumerate(values) if value != values[0]]
        return struct.pack(f"<{len(odd)}I", *odd)

    answer = rendezvous.exchange(digest_of(b"".join(prints)), compare)
    odd = [process for (process,) in struct.iter_unpack("<I", answer)]
    if not odd:
        return

    def explain(values: list[bytes]) -> bytes:
        found: dict[tuple[int, str], list[int]] = {}
        for process in odd[:_MAX_EXPLAINED]:
            for leaf, how in _differences(prints, values[process]):
                found.setdefault((leaf, how), []).append(process)
        lines = [
            f"  {format_path(specs[leaf].key_path) or 'the root' if leaf >= 0 else 'the tree'}: "
            f"{how} on {named(processes)}"
            for (leaf, how), processes in sorted(found.items())
        ]
        more = f"\n  ... and {len(lines) - _MAX_LINES} more" if len(lines) > _MAX_LINES else ""
        raise ProcessError(
            f"{named(odd)} would save something else than process 0:\n"
            + "\n".join(lines[:_MAX_LINES])
            + f"{more}\nA leaf that each process holds for itself must be equal on all; what is to "
            "differ belongs into one array over all processes "
            "(jax.make_array_from_process_local_data)"
        )

    mine = rendezvous.index in odd[:_MAX_EXPLAINED]
    rendezvous.exchange(b"".join(prints) if mine else b"", explain)


def _differences(prints: Sequence[bytes], sent: bytes) -> list[tuple[int, str]]:
    """The leaves in which another process differs, and how; -1 for the tree itself."""
    others = [sent[at : at + _PRINT] for at in range(0, len(sent), _PRINT)]
    if others[0] != prints[0]:
        found = counted(len(others) - 1, "leaf", "leaves")
        return [(-1, f"another structure ({found}), or dicts in another order,")]
    return [
        (leaf, "another value" if a[:_HALF] == b[:_HALF] else "another type, shape or sharding")
        for leaf, (a, b) in enumerate(zip(prints[1:], others[1:], strict=True))
        if a != b
    ]
