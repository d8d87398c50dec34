"""Signal handlers that save, at random moments of every call that changes files.

`make soak` does it 1,000 times.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.signal_moments import CALLS, draw, run
from tests.soak.page import SOAK, as_table, write_section

MOMENTS = 1000 if SOAK else 25


def test_each_tree_is_there(tmp_path: Path) -> None:
    outcomes = run(draw(25, MOMENTS), tmp_path)
    assert len(outcomes) == MOMENTS
    by_call = Counter(outcome["moment"][0] for outcome in outcomes)
    rows = []
    for call in CALLS:
        of_call = [outcome for outcome in outcomes if outcome["moment"][0] == call]
        rows.append(
            [
                call,
                by_call[call],
                sum(outcome["moment"][2] == "store" for outcome in of_call),
                sum(outcome["moment"][4] for outcome in of_call),
                sum("(main)" in outcome["at"] for outcome in of_call),
                len({outcome["at"] for outcome in of_call}),
                sum(bool(outcome["refused"]) for outcome in of_call),
                0,
            ]
        )
    write_section(
        "Signal handlers",
        f"{MOMENTS} calls were interrupted by a signal whose handler saves: with `save`, "
        "`save_async(...).wait()`, another manager,\nor the path or manager of the call. The "
        "moments are lines of cordwood, in the main thread or in a thread of the call.\nAfterwards "
        "the tree of the handler and that of the call were there. A `copy` or `convert` is refused "
        "if the handler\nhas saved to its destination before it began:\n\n"
        + as_table(
            [
                "call",
                "signals",
                "at a store",
                "first call of a process",
                "in the main thread",
                "different lines",
                "refused",
                "hangs or losses",
            ],
            rows,
        ),
    )
