"""What options mean that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def pairs_of(option: str, form: str, values: Sequence[str]) -> dict[str, str] | None:
    """`form`, such as OLD=NEW, several times, as a dict; None where there is none.

    Raises click.BadParameter.
    """
    found = {}
    for value in values:
        old, sign, new = value.partition("=")
        if not sign:
            raise click.BadParameter(f"expected {form}, found {value!r}", param_hint=option)
        found[old] = new
    return found or None


def cast_of(values: Sequence[str]) -> Any:
    """A dtype by itself, or PATTERN=DTYPE several times; None where there is none.

    Raises click.BadParameter.
    """
    if len(values) == 1 and "=" not in values[0]:
        (value,) = values
        if set(value) & set("*?[]/!"):
            raise click.BadParameter(
                f"expected DTYPE or PATTERN=DTYPE, found {value!r}", param_hint="--cast"
            )
        return value
    return pairs_of("--cast", "PATTERN=DTYPE", values)
