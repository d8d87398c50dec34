"""cordwood show: one leaf, looked at closely."""

from __future__ import annotations

from typing import Any

import click

from cordwood.cli.output import (
    as_json_has_it,
    columns,
    json_option,
    print_json,
    print_text,
)
from cordwood.cli.path_arguments import SOURCE, complete_key
from cordwood.keypath import key_literal
from cordwood.message_text import size_text

EXAMPLES = """
\b
Examples:
  cordwood show run/100 params/dense/kernel
  cordwood show model.safetensors step --json
"""

_BARS = " ▁▂▃▄▅▆▇█"


@click.command("show", epilog=EXAMPLES, short_help="Show one leaf: statistics, histogram.")
@click.argument("path", type=SOURCE)
@click.argument("key", shell_complete=complete_key)
@click.option("--prefix", help="Which tree of a directory that holds several.")
@json_option
def command(path: str, key: str, prefix: str | None, as_json: bool) -> None:
    """Tell what the leaf KEY of the checkpoint at PATH is like.

    Of an array of numbers: how many are NaN, infinite and zero, the extent, mean and standard
    deviation of the others, a histogram of 24 bins from the least to the greatest, and the first
    elements. Of another leaf, its value.
    """
    from cordwood.api.checkpoint import open as open_checkpoint
    from cordwood.api.leaf_statistics import leaf_statistics
    from cordwood.plan.leaf_text import leaf_text

    with open_checkpoint(path, prefix=prefix) as checkpoint:
        stored = checkpoint[key]
        what = leaf_text(checkpoint._find_leaf(key))
        if not stored.dtype or stored.dtype.startswith(("datetime", "timedelta")):
            value = stored.load(to="numpy")
            if as_json:
                print_json({"key_path": key, "kind": stored.kind, "value": as_json_has_it(value)})
            else:
                print_text(f"{key}: {what}\n{key_literal(value)}"[:100_000])
            return
        found = leaf_statistics(checkpoint, key)
    if as_json:
        plain = {name: as_json_has_it(value) for name, value in found._asdict().items()}
        print_json({"key_path": key, "what": what, "size_bytes": stored.nbytes, **plain})
        return
    rows = [
        ["elements", f"{found.size} ({size_text(stored.nbytes)})"],
        ["NaN", str(found.nan)],
        ["infinite", str(found.inf)],
        ["zero", str(found.zero)],
    ]
    if found.min is not None:
        rows += [
            ["min", f"{found.min:.6g}"],
            ["max", f"{found.max:.6g}"],
            ["mean", f"{found.mean:.6g}"],
            ["std", f"{found.std:.6g}"],
            ["histogram", _sparkline(found.histogram)],
        ]
    rows.append(["first", " ".join([_short(value) for value in found.first])])
    print_text(f"{key}: {what}\n{columns(rows)}")


def _sparkline(counts: tuple[int, ...]) -> str:
    """Return counts as bars; one that is not 0 shows.

    >>> _sparkline((0, 1, 50, 100))
    ' ▁▄█'
    """
    most = max(counts)
    return "".join([_BARS[min(8, max(count > 0, count * 8 // most))] for count in counts])


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
