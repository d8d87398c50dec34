"""Groups of leaves that fit into the host's memory together, on their way to other memory.

While one group is on its way to the devices, the next is read; so two are on the host. On the
CPU there is nothing to group: jax uses the memory that was read into.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood import dtypes
from cordwood.index import Inline, Leaf
from cordwood.plan.load_boxes import BoxRequest
from cordwood.sharding.boxes import element_count

GROUP_BYTES = 1 << 30  # of a group


def group_requests(wants: Sequence[BoxRequest], budget_bytes: int) -> list[list[int]]:
    """Positions of wants in groups of at most so many bytes (or of one), by where they lie."""
    groups: list[list[int]] = []
    left = 0
    for i in sorted(range(len(wants)), key=lambda i: _place(wants[i].leaf)):
        size = request_bytes(wants[i])
        if not groups or size > left:
            groups.append([])
            left = budget_bytes
        groups[-1].append(i)
        left -= size
    return groups


def request_bytes(want: BoxRequest) -> int:
    leaf, boxes = want
    return sum(map(element_count, boxes)) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0


def _place(leaf: Leaf) -> tuple[int, int]:
    """Where a leaf begins: its source and offset."""
    if isinstance(leaf.storage, Inline) or not leaf.storage.pieces:
        return 0, 0
    return leaf.storage.pieces[0][1:3]
