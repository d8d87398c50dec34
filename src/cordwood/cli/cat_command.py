"""The command `cordwood cat`: print one leaf or a part of it."""

from __future__ import annotations

import re
from typing import Any

import click

from cordwood.cli.arguments import SOURCE, complete_key
from cordwood.cli.output import json_option, print_json, print_text, to_json_value
from cordwood.keypath import key_literal

EXAMPLES = """
\b
Examples:
  cordwood cat run/100 step
  cordwood cat run/100 'params/dense/kernel[0:3,:]'   three rows
  cordwood cat run/100 'params/dense/bias[-1]' --json
"""

_INDEX = re.compile(r"(.*)\[([^\[\]]*)\]", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@click.command("cat", epilog=EXAMPLES, short_help="Print a leaf, or a part of it.")
@click.argument("path", type=SOURCE)
@click.argument("key", shell_complete=complete_key)
@click.option("--prefix", help="The tree to use, if the directory holds several.")
@json_option
def command(path: str, key: str, prefix: str | None, as_json: bool) -> None:
    """Print the leaf KEY of the checkpoint at PATH, or a part of it: KEY[0:3,:,-1].

    Only the bytes that the part needs are read and verified. --json prints nested lists.
    """
    from cordwood.api.checkpoint import open as open_checkpoint

    with open_checkpoint(path, prefix=prefix) as checkpoint:
        match = None if key in checkpoint else _INDEX.fullmatch(key)
        if match is None:
            value = checkpoint[key].load(to="numpy")
        else:
            stored, index = checkpoint[match[1]], parse_index(match[2])
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
        return
    print_text(_text(value), raw=isinstance(value, str))


def parse_index(text: str) -> tuple[Any, ...]:
    """Parse an index such as `0:3,:,-1`: integers, slices and `...`, separated by commas.

    Raises click.BadParameter.
    """
    parts: list[Any] = []
    for part in text.split(","):
        part = part.strip()
        if part == "...":
            parts.append(...)
        elif ":" in part:
            bounds = [bound.strip() for bound in part.split(":")]
            if len(bounds) > 3:
                raise _bad(text)
            parts.append(slice(*[_integer(bound, text) if bound else None for bound in bounds]))
        else:
            parts.append(_integer(part, text))
    return tuple(parts)


def _integer(text: str, whole: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _bad(whole)
    return int(text)


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(
        f"expected integers, slices and ... between commas, as in [0:3,:,-1], found [{text}]",
        param_hint="KEY",
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not hasattr(value, "dtype"):
        return key_literal(value)
    import numpy as np

    return np.array2string(np.asarray(value), threshold=100_000, max_line_width=100)
