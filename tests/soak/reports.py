"""The tables of runs that were killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.soak.ledger import PLACES, Ledger
from tests.soak.page import as_table


def kills_table(head: Sequence[str], kills: Sequence[tuple[tuple[str, ...], str]]) -> str:
    """Return a table of how many processes were killed at which place.

    Args:
        head: the column names of the kinds of kill.
        kills: the kind and the place of each kill.
    """
    kinds = sorted({kind for kind, _ in kills})
    rows = []
    for kind in kinds:
        counts = Counter(place for each, place in kills if each == kind)
        rows.append([*kind, counts.total(), *(counts[place] for place in PLACES)])
    return as_table([*head, "kills", *PLACES], rows)


def totals_table(ledger: Ledger) -> str:
    """Return the table of totals, which is written only if nothing was lost or wrong."""
    head = ["steps", "lost", "wrong", "losses that differ"]
    head += ["leftovers", "after the next save", "on disk, at most", "bound"]
    head += ["if everything were written"]
    sizes = [
        f"{size / 1e6:.1f} MB"
        for size in (ledger.most_bytes, ledger.bound_bytes, ledger.unlinked_bytes)
    ]
    return as_table(head, [[ledger.newest, 0, 0, 0, f"at most {ledger.most_left}", 0, *sizes]])
