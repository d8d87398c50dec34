"""The command `cordwood show`: statistics of one leaf."""

from __future__ import annotations

from typing import Any

import click

from cordwood.cli.arguments import SOURCE, complete_key
from cordwood.cli.output import (
    columns,
    json_option,
    print_json,
    print_text,
    to_json_value,
)
from cordwood.keypath import key_literal
from cordwood.message_text import size_text

EXAMPLES = """
\b
Examples:
  cordwood show run/100 params/dense/kernel
  cordwood show model.safetensors step --json
"""

_BARS = " ▁▂▃▄▅▆▇█"

# The statistics in the JSON output.
_FIELDS = ("size", "nan", "inf", "zero", "min", "max", "mean", "std", "histogram", "first")


@click.command("show", epilog=EXAMPLES, short_help="Show statistics and a histogram of one leaf.")
@click.argument("path", type=SOURCE)
@click.argument("key", shell_complete=complete_key)
@click.option("--prefix", help="The tree to use, if the directory holds several.")
@json_option
def command(path: str, key: str, prefix: str | None, as_json: bool) -> None:
    """Print statistics of the leaf KEY of the checkpoint at PATH.

    For an array of numbers: the number of NaN, infinite and zero elements; minimum, maximum, mean
    and standard deviation of the finite ones, and their histogram in 24 bins; and the first
    elements. For any other leaf, its value.
    """
    from cordwood.api.checkpoint import open as open_checkpoint
    from cordwood.api.leaf_statistics import leaf_statistics
    from cordwood.index import leaf_text

    with open_checkpoint(path, prefix=prefix) as checkpoint:
        stored = checkpoint[key]
        what = leaf_text(checkpoint._find_leaf(key))
        if not stored.dtype or stored.dtype.startswith(("datetime", "timedelta")):
            value = stored.load(to="numpy")
            if as_json:
                print_json({"key_path": key, "kind": stored.kind, "value": to_json_value(value)})
            else:
                print_text(f"{key}: {what}\n{key_literal(value)}"[:100_000])
            return
        summary = leaf_statistics(checkpoint, key)
    if as_json:
        plain = {name: to_json_value(getattr(summary, name)) for name in _FIELDS}
        print_json({"key_path": key, "what": what, "size_bytes": stored.nbytes, **plain})
        return
    rows = [
        ["elements", f"{summary.size} ({size_text(stored.nbytes)})"],
        ["NaN", str(summary.nan)],
        ["infinite", str(summary.inf)],
        ["zero", str(summary.zero)],
    ]
    if summary.min is not None:
        rows += [
            ["min", f"{summary.min:.6g}"],
            ["max", f"{summary.max:.6g}"],
            ["mean", f"{summary.mean:.6g}"],
            ["std", f"{summary.std:.6g}"],
            ["histogram", _sparkline(summary.histogram)],
        ]
    rows.append(["first", " ".join([_short(value) for value in summary.first])])
    print_text(f"{key}: {what}\n{columns(rows)}")


def _sparkline(counts: tuple[int, ...]) -> str:
    """Return counts as a row of bars; every count above 0 has a visible bar.

    >>> _sparkline((0, 1, 50, 100))
    ' ▁▄█'
    """
    most = max(counts)
    return "".join([_BARS[min(8, max(count > 0, count * 8 // most))] for count in counts])


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
