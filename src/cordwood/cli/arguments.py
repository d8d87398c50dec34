"""Arguments of several commands: paths, key paths with completion, `run/latest`, pairs, casts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import click

_MAX_KEYS = 200  # completions; if more keys match, their containers are offered
_PLAIN = re.compile(r"[\w./%+,-]+")  # keys that need no quotes in a shell


class _Source(click.Path):
    """The path of a checkpoint to read; `run/latest` and `run/best` mean a step in `run`."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        from cordwood.loading.locate_step import is_nickname, locate_checkpoint
        from cordwood.storage.locations import parse_location

        location = parse_location(value)
        return str(locate_checkpoint(location)) if is_nickname(location) else value


class _WrittenPath(click.Path):
    """The path of a file or directory that the command itself writes; no URL of a store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from cordwood.errors import CordwoodError
        from cordwood.storage.locations import parse_local_path

        try:
            return parse_local_path(value, purpose="to write to").text
        except (CordwoodError, ValueError) as e:
            self.fail(str(e), param, ctx)


PATH, SOURCE = click.Path(readable=False), _Source()  # used unchanged: they may be URLs
LOCAL_PATH = _WrittenPath(readable=False)

prefix_option = click.option("--prefix", help="The tree to use, if the directory holds several.")
format_option = click.option(
    "--format", help="The format of the file, if its suffix does not name it."
)

# Options of several values: a list of patterns, or a dict; None if there are no values.
patterns_option = partial(
    click.option, multiple=True, callback=lambda _ctx, _param, values: list(values) or None
)
rename_option = partial(
    click.option,
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    callback=lambda _ctx, _param, values: rename_of(values),
)
cast_option = partial(
    click.option,
    "--cast",
    multiple=True,
    metavar="DTYPE|PATTERN=DTYPE",
    callback=lambda _ctx, _param, values: cast_of(values),
)


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


def rename_of(values: Sequence[str]) -> dict[str, list[str]] | None:
    """Return the argument `rename` for the values of --rename; a repeated OLD has several NEW."""
    targets: dict[str, list[str]] = {}
    for value in values:
        for old, new in (pairs_of("--rename", "OLD=NEW", [value]) or {}).items():
            targets.setdefault(old, []).append(new)
    return targets or None


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
