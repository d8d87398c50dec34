"""Groups of leaves that limit the host memory of a load to devices.

While one group is copied to the devices, the next one is read, so the host holds two groups. A
load to the CPU needs no groups: jax uses the memory that the leaves were read into.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood import dtypes
from cordwood.index import Inline, Leaf
from cordwood.plan.load_boxes import BoxRequest
from cordwood.sharding.boxes import element_count

GROUP_BYTES = 1 << 30  # of a group


def group_requests(wants: Sequence[BoxRequest], budget_bytes: int) -> list[list[int]]:
    """Return the positions of the requests in groups, in the order of their bytes in the files.

    A group has at most `budget_bytes` bytes, or it is a single larger leaf.
    """
    groups: list[list[int]] = []
    free_bytes = 0
    for i in sorted(range(len(wants)), key=lambda i: _place(wants[i].leaf)):
        size = request_bytes(wants[i])
        if not groups or size > free_bytes:
            groups.append([])
            free_bytes = budget_bytes
        groups[-1].append(i)
        free_bytes -= size
    return groups


def request_bytes(request: BoxRequest) -> int:
    """Return the size of the elements of the requested boxes, in bytes."""
    leaf, boxes = request
    return sum(map(element_count, boxes)) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0


def _place(leaf: Leaf) -> tuple[int, int]:
    """Return where a leaf begins: its source and offset."""
    if isinstance(leaf.storage, Inline) or not leaf.storage.pieces:
        return 0, 0
    return leaf.storage.pieces[0][1:3]
