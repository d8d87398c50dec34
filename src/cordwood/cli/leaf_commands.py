"""The commands about one leaf: `cat` prints it, or a part of it; `show` prints statistics."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import click

from cordwood.cli.arguments import SOURCE, prefix_option
from cordwood.cli.complete_key import complete_key
from cordwood.cli.output import columns, json_option, print_json, print_text, to_json_value
from cordwood.keypath import key_literal
from cordwood.message_text import size_text

if TYPE_CHECKING:
    from cordwood.loading.checkpoint import Checkpoint
    from cordwood.loading.stored_leaf import StoredLeaf

CAT_EXAMPLES = """
\b
Examples:
  cordwood cat run/100 step
  cordwood cat run/100 'params/dense/kernel[0:3,:]'   three rows
  cordwood cat run/100 'params/dense/bias[-1]' --json
"""

SHOW_EXAMPLES = """
\b
Examples:
  cordwood show run/100 params/dense/kernel
  cordwood show model.safetensors step --json
"""

_INDEX = re.compile(r"(.*)\[([^\[\]]*)\]", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BOUND = re.compile(r"([+-]?[0-9]{1,18})?")

_MAX_SHOWN_BYTES = 1 << 20  # of a value that has no statistics, if it is longer
_MAX_CHARACTERS = 100_000  # of the literal of such a value
_BARS = " ▁▂▃▄▅▆▇█"

# The statistics in the JSON output.
_FIELDS = ("size", "nan", "inf", "zero", "min", "max", "mean", "std", "histogram", "first")


@click.command("cat", epilog=CAT_EXAMPLES, short_help="Print a leaf, or a part of it.")
@click.argument("path", type=SOURCE)
@click.argument("key", shell_complete=complete_key)
@prefix_option
@json_option
def cat_command(path: str, key: str, prefix: str | None, as_json: bool) -> None:
    """Print the leaf KEY of the checkpoint at PATH, or a part of it: KEY[0:3,:,-1].

    Only the bytes that the part needs are read and verified. --json prints nested lists.
    """
    from cordwood.api.open_checkpoint import open as open_checkpoint

    with open_checkpoint(path, prefix=prefix) as checkpoint:
        match = None if key in checkpoint else _INDEX.fullmatch(key)
        if match is None:
            value = checkpoint[key].load(to="numpy")
        else:
            stored, index = checkpoint[match[1]], parse_slice(match[2])
            if not stored.dtype:
                raise click.BadParameter(
                    f"{key}: expected an array, found {stored.kind}", param_hint="KEY"
                )
            try:
                value = stored[index]
            except IndexError as e:
                raise click.BadParameter(f"{key}: {e}", param_hint="KEY") from e
    if as_json:
        print_json({"key_path": key, "value": to_json_value(value)})
    else:
        print_text(_text(value), raw=isinstance(value, str))


def parse_slice(text: str) -> tuple[Any, ...]:
    """Parse an index such as `0:3,:,-1`: integers, slices and `...`, separated by commas.

    Raises click.BadParameter.
    """
    parts: list[Any] = []
    for part in text.split(","):
        bounds = [bound.strip() for bound in part.split(":")]
        if bounds == ["..."]:
            parts.append(...)
            continue
        integer = _INTEGER if len(bounds) == 1 else _BOUND
        if len(bounds) > 3 or not all(map(integer.fullmatch, bounds)):
            raise click.BadParameter(
                "expected integers, slices and ... between commas, as in [0:3,:,-1], found "
                f"[{text}]",
                param_hint="KEY",
            )
        numbers = [int(bound) if bound else None for bound in bounds]
        parts.append(numbers[0] if len(bounds) == 1 else slice(*numbers))
    return tuple(parts)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not hasattr(value, "dtype"):
        return key_literal(value)
    import numpy as np

    return np.array2string(np.asarray(value), threshold=100_000, max_line_width=100)


@click.command(
    "show", epilog=SHOW_EXAMPLES, short_help="Show statistics and a histogram of one leaf."
)
@click.argument("path", type=SOURCE)
@click.argument("key", shell_complete=complete_key)
@prefix_option
@json_option
def show_command(path: str, key: str, prefix: str | None, as_json: bool) -> None:
    """Print statistics of the leaf KEY of the checkpoint at PATH.

    For an array of numbers: the number of NaN, infinite and zero elements; minimum, maximum, mean
    and standard deviation of the finite ones, and their histogram in 24 bins; and the first
    elements. For any other leaf, its value; for a PRNG key, the key data. Of a value of more than
    1 MiB, the beginning; --json then has "complete": false.
    """
    from cordwood.api.open_checkpoint import open as open_checkpoint
    from cordwood.comparing.leaf_statistics import leaf_statistics
    from cordwood.index import leaf_text

    with open_checkpoint(path, prefix=prefix) as checkpoint:
        stored = checkpoint[key]
        what = leaf_text(checkpoint._find_leaf(key))
        is_key = stored.kind == "prng_key"
        if is_key or not stored.dtype or stored.dtype.startswith(("datetime", "timedelta")):
            value, size_bytes = _beginning(checkpoint, stored)
            if as_json:
                cut = {} if size_bytes is None else {"size_bytes": size_bytes, "complete": False}
                document = {"key_path": key, "kind": stored.kind, "value": to_json_value(value)}
                print_json({**document, **cut})
            else:
                text = f"{key}: {what}\n{_text(value) if is_key else key_literal(value)}"
                if size_bytes is not None or len(text) > _MAX_CHARACTERS:
                    size = "" if size_bytes is None else f" of {size_text(size_bytes)}"
                    note = f"This is the beginning{size}: cordwood cat prints the leaf."
                    text = f"{text[:_MAX_CHARACTERS]} ...\n{note}"
                print_text(text)
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
        rows += [[name, f"{getattr(summary, name):.6g}"] for name in ("min", "max", "mean", "std")]
        rows.append(["histogram", _sparkline(summary.histogram)])
    rows.append(["first", " ".join([_short(value) for value in summary.first])])
    print_text(f"{key}: {what}\n{columns(rows)}")


def _beginning(checkpoint: Checkpoint, stored: StoredLeaf) -> tuple[Any, int | None]:
    """Return a value, or the words of a key; of more than 1 MiB its beginning, and its size."""
    from cordwood import dtypes
    from cordwood.index import Inline
    from cordwood.plan.split_arrays import first_block
    from cordwood.sharding.boxes import whole_box

    leaf = stored._leaf
    if isinstance(leaf.storage, Inline) or not leaf.dtype:
        value = stored.load(to="numpy")
        if isinstance(value, str | bytes) and len(value) > _MAX_SHOWN_BYTES:
            encoded = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            return value[:_MAX_SHOWN_BYTES], len(encoded)
        return value, None
    item_bytes = dtypes.itemsize(leaf.dtype)
    size_bytes = math.prod(leaf.shape) * item_bytes
    if size_bytes <= _MAX_SHOWN_BYTES:
        return (stored[...] if stored.kind == "prng_key" else stored.load(to="numpy")), None
    box = first_block(whole_box(leaf.shape), item_bytes, _MAX_SHOWN_BYTES)
    reader = checkpoint._reader
    (array,) = reader.read(reader.with_pieces([leaf], {0: [box]}), {0: [box]})
    if stored.kind == "bytes":
        return array.tobytes(), size_bytes
    if stored.kind == "str":
        return array.tobytes().decode("utf-8", "ignore"), size_bytes  # it may end in a character
    return array, size_bytes


def _sparkline(counts: tuple[int, ...]) -> str:
    """Return counts as a row of bars; every count above 0 has a visible bar.

    >>> _sparkline((0, 1, 50, 100))
    ' ▁▄█'
    """
    most = max(counts)
    return "".join([_BARS[min(8, max(count > 0, count * 8 // most))] for count in counts])


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
