"""Parsers of the options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def pairs_of(option: str, form: str, values: Sequence[str]) -> dict[str, str] | None:
    """Return the values of an option of the form OLD=NEW as a dict, or None if there are none.

    Raises click.BadParameter, which shows `form`.
    """
    pairs = {}
    for value in values:
        old, sign, new = value.partition("=")
        if not sign:
            raise click.BadParameter(f"expected {form}, found {value!r}", param_hint=option)
        pairs[old] = new
    return pairs or None


def cast_of(values: Sequence[str]) -> Any:
    """Return the argument `cast` for the values of --cast: a dtype, a dict of patterns, or None.

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
