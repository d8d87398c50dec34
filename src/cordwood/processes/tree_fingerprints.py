"""Fingerprints of a tree, by which the processes of a save compare their trees.

Leaves that jax spreads over processes must be spread in the same way on all processes. Any other
leaf, which each process holds by itself (numpy arrays, Python values, arrays on its own devices),
must have the same value on all processes: that of process 0 is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.index import LeafSpec, Structure
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines
from cordwood.processes.process_error_texts import process_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.sharding.boxes import ShardGrid

if TYPE_CHECKING:
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.tree.flatten import DescribedTree


_HALF_BYTES = 8  # one half is a digest of the type of a leaf, the other half of its value
_FINGERPRINT_BYTES = 2 * _HALF_BYTES
_MAX_EXPLAINED = 64  # processes whose differences are listed
_MAX_LINES = 20


def fingerprints(
    structure: Structure,
    specs: Sequence[LeafSpec],
    shards: Sequence[ShardGrid],
    local: Mapping[int, bytes],
) -> list[bytes]:
    """Return short fingerprints of what a process holds: of the structure, then of each leaf.

    Args:
        structure: the structure of the tree.
        specs: its leaves.
        shards: how each leaf is spread over processes.
        local: the `digest_of_elements` of each array that this process holds by itself, by leaf.
    """
    shard_digests: dict[int, bytes] = {}  # by identity: equal leaves share their map
    prints = [digest_of(repr(tuple(map(tuple, structure))).encode("utf-8", "surrogatepass"))]
    for leaf, (spec, shard) in enumerate(zip(specs, shards, strict=True)):
        shard_digest = shard_digests.get(id(shard))
        if shard_digest is None:
            shard_digest = shard_digests[id(shard)] = digest_of(repr(tuple(shard)).encode())
        what = repr(tuple(spec._replace(value=None))).encode("utf-8", "surrogatepass")
        value = local.get(leaf) or digest_of(repr(spec.value).encode("utf-8", "surrogatepass"))
        prints.append(digest_of(what + shard_digest)[:_HALF_BYTES] + value[:_HALF_BYTES])
    return prints


def digest_of_elements(array: Any) -> bytes:
    """Return a digest of the elements of an array, or of one that is read for this."""
    elements = np.ascontiguousarray(np.asarray(array)).reshape(-1)
    return digest_of(elements.view(np.uint8).data)


def tree_fingerprints(
    trees: Sequence[DescribedTree], leaves: Leaves, process: int
) -> Sequence[bytes]:
    """Return the `fingerprints` of a tree, or of one tree that holds several trees in this order.

    Args:
        trees: the trees.
        leaves: their leaves, tree by tree. All processes but the first one drop those that each
            process holds for itself, because process 0 writes them.
        process: the number of this process.
    """
    prints: list[list[bytes]] = []
    first_leaf = 0
    for structure, specs, shards, _, local in trees:
        digests = {}
        for leaf in local:
            digests[leaf] = digest_of_elements(leaves.view(first_leaf + leaf))
            if process > 0:
                leaves.drop(first_leaf + leaf)
        prints.append(fingerprints(structure, specs, shards, digests))
        first_leaf += len(specs)
    if len(prints) == 1:
        return prints[0]
    structure_digest = digest_of(b"".join([each[0] for each in prints]))
    return [structure_digest, *[digest for each in prints for digest in each[1:]]]


def require_agreement(
    rendezvous: Rendezvous, prints: Sequence[bytes], specs: Sequence[LeafSpec]
) -> None:
    """Raise ProcessError on all processes unless they hold the same tree.

    This takes one round, and a second one to find out what differs. The error names the leaves
    that differ, and the processes.

    Args:
        rendezvous: of all processes.
        prints: the `fingerprints` of this process.
        specs: its leaves.
    """

    def compare(digests: list[str]) -> list[int]:
        return [process for process, each in enumerate(digests) if each != digests[0]]

    differing = rendezvous.exchange(digest_of(b"".join(prints)).hex(), compare)
    if not differing:
        return

    def explain(values: list[str]) -> None:
        processes_by_difference: dict[tuple[int, str], list[int]] = {}
        for process in differing[:_MAX_EXPLAINED]:
            for leaf, how in _differences(prints, bytes.fromhex(values[process])):
                processes_by_difference.setdefault((leaf, how), []).append(process)
        lines = [
            f"{path_label(specs[leaf].key_path) if leaf >= 0 else 'the tree'}: "
            f"{how} on {process_names(processes)}"
            for (leaf, how), processes in sorted(processes_by_difference.items())
        ]
        raise ProcessError(
            f"{process_names(differing)} would save something else than process 0:\n"
            f"{first_lines(lines, _MAX_LINES)}\nA leaf that each process holds for itself must "
            "be equal on all; what is to differ belongs into one array over all processes "
            "(jax.make_array_from_process_local_data)"
        )

    explains = rendezvous.index in differing[:_MAX_EXPLAINED]
    rendezvous.exchange(b"".join(prints).hex() if explains else "", explain)


def _differences(prints: Sequence[bytes], sent: bytes) -> list[tuple[int, str]]:
    """Return the leaves in which another process differs, and how; -1 stands for the structure.

    Args:
        prints: the fingerprints of process 0.
        sent: the fingerprints of the other process, one after another.
    """
    half = _HALF_BYTES
    starts = range(0, len(sent), _FINGERPRINT_BYTES)
    others = [sent[start : start + _FINGERPRINT_BYTES] for start in starts]
    if others[0] != prints[0]:
        leaf_count = counted(len(others) - 1, "leaf", "leaves")
        return [(-1, f"another structure ({leaf_count}), or dicts in another order,")]
    return [
        (leaf, "another value" if a[:half] == b[:half] else "another type, shape or sharding")
        for leaf, (a, b) in enumerate(zip(prints[1:], others[1:], strict=True))
        if a != b
    ]
