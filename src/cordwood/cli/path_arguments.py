"""Arguments that are paths and key paths: what a shell completes, and `run/latest`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    _ParamType = click.ParamType  # no generic in older versions of click

_LATEST = "latest"
_LOOKED_AT = 20  # steps, for the newest that is whole
_MAX_KEYS = 200  # that are offered whole; of more, the containers that they are in
_PLAIN = re.compile(r"[\w./%+,-]+")  # keys that a shell takes as they are, without quotes


class _Path(_ParamType):
    """A path that is to be written, or looked at as it is; shells complete files."""

    name = "path"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class _Source(_Path):
    """The path of a checkpoint that is to be read: `run/latest` is the newest step in `run`."""

    def convert(
        self,
        value: str,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        path = value.rstrip("/")
        return newest_step(path) if path.rpartition("/")[2] == _LATEST else value


PATH, SOURCE = _Path(), _Source()


def newest_step(path: str) -> str:
    """Return the path of the newest whole step, for a path that ends in `latest`.

    The path is returned as it is where something lies at it, or no step is whole.
    """
    from cordwood.api.detect import detect
    from cordwood.errors import CordwoodError
    from cordwood.storage.path_kind import kind_at
    from cordwood.storage.urls import parse_url

    root = path.rpartition("/")[0] or "."
    try:
        if parse_url(path) is None and kind_at(path) != "nothing":
            return path
        for step in reversed(detect(root).steps[-_LOOKED_AT:]):
            try:
                detect(f"{root}/{step}")
            except (CordwoodError, OSError):
                continue
            return f"{root}/{step}"
    except (CordwoodError, OSError):  # the command says why there is nothing at the path itself
        pass
    return path


def complete_key(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return the key paths that a word may become, of the checkpoint at the PATH before it.

    Of a URL there are none: a Tab key must not wait for a network.
    """
    from cordwood.api.list_leaves import list_leaves
    from cordwood.storage.urls import parse_url

    path = ctx.params.get("path")
    if path is None or parse_url(path) is not None:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would be printed into the line that is typed
        try:
            rows = list_leaves(path, prefix=ctx.params.get("prefix")).rows
        except Exception:  # noqa: BLE001  (there is nothing to offer; the command says why)
            return []
    return completions([row.key_path for row in rows], incomplete)


def completions(keys: Sequence[str], incomplete: str) -> list[str]:
    """Return what a shell offers for the beginning of a key path.

    All leaves that begin so; of very many the containers that they are in, up to where they fork.
    Keys that need quotes in a shell are left out.

    >>> completions(["a/b", "a/c", "d", "it's"], "")
    ['a/b', 'a/c', 'd']
    >>> completions([f"layers/{i}/w{j}" for i in range(2) for j in range(150)], "la")
    ['layers/0/', 'layers/1/']
    """
    found = [key for key in keys if key.startswith(incomplete) and _PLAIN.fullmatch(key)]
    if len(found) <= _MAX_KEYS:
        return found
    depth = incomplete.count("/")
    while True:
        depth += 1
        starts = list(dict.fromkeys([_start(key, depth) for key in found]))
        if len(starts) > 1:
            return starts


def _start(key: str, depth: int) -> str:
    """Return the first keys of a key path, with a slash where there are more.

    >>> [_start(key, 2) for key in ("a/b/c", "a/b", "a")]
    ['a/b/', 'a/b', 'a']
    """
    keys = key.split("/", depth)
    return "/".join(keys[:depth]) + ("/" if len(keys) > depth else "")
