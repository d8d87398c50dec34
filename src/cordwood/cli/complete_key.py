"""The completion of key paths by the Tab key of a shell."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import count

import click

_MAX_KEYS = 200  # completions; if more keys match, their containers are offered
_PLAIN = re.compile(r"[\w./%+,-]+")  # keys that need no quotes in a shell


def complete_key(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return the key paths in the checkpoint at the PATH argument that complete a word.

    For a URL, return none: the Tab key must not wait for a network.
    """
    from cordwood.cli.list_leaves import list_leaves
    from cordwood.storage.locations import Url, parse_location

    path = ctx.params.get("path")
    if path is None or isinstance(parse_location(path), Url):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would be printed into the command line
        try:
            rows = list_leaves(path, prefix=ctx.params.get("prefix")).rows
        except Exception:  # noqa: BLE001  (no completions; the command reports the error)
            return []
    return completions([row.key_path for row in rows], incomplete)


def completions(keys: Sequence[str], incomplete: str) -> list[str]:
    """Return the completions that a shell offers for the beginning of a key path.

    These are all leaves with that beginning; or, if they are more than 200, their containers at the
    first level at which they differ. Keys that need quotes in a shell are left out.

    >>> completions(["a/b", "a/c", "d", "it's"], "")
    ['a/b', 'a/c', 'd']
    >>> completions([f"layers/{i}/w{j}" for i in range(2) for j in range(150)], "la")
    ['layers/0/', 'layers/1/']
    """
    matches = [key for key in keys if key.startswith(incomplete) and _PLAIN.fullmatch(key)]
    if len(matches) <= _MAX_KEYS:
        return matches
    levels = (
        list(dict.fromkeys([_start(key, depth) for key in matches]))
        for depth in count(incomplete.count("/") + 1)
    )
    return next(starts for starts in levels if len(starts) > 1)


def _start(key: str, depth: int) -> str:
    """Return the first keys of a key path, with a slash at the end if more keys follow.

    >>> [_start(key, 2) for key in ("a/b/c", "a/b", "a")]
    ['a/b/', 'a/b', 'a']
    """
    keys = key.split("/", depth)
    return "/".join(keys[:depth]) + ("/" if len(keys) > depth else "")
