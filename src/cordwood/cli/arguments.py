"""Arguments of several commands: paths, key paths with completion, `run/latest`, pairs, casts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cordwood.errors import CordwoodError

if TYPE_CHECKING:
    from cordwood.loading.detect_checkpoint import Detected


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
        from cordwood.storage.locations import parse_local_path

        try:
            return parse_local_path(value, purpose="to write to").text
        except (CordwoodError, ValueError) as e:
            self.fail(str(e), param, ctx)


PATH, SOURCE = click.Path(readable=False), _Source()  # used unchanged: they may be URLs
LOCAL_PATH = _WrittenPath(readable=False)


@contextmanager
def wrong_arguments() -> Iterator[None]:
    """Turn a ValueError of the block, which is about an argument, into a usage error (exit code 2).

    Errors of what is stored are CordwoodErrors, and remain.
    """
    try:
        yield
    except ValueError as e:
        if isinstance(e, CordwoodError):
            raise
        raise click.UsageError(str(e)) from e


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


def detected_run(path: str) -> Detected:
    """Return what a directory of steps holds. Raises click.UsageError for another path."""
    from cordwood.api.detect import detect

    detected = detect(path)
    if detected.format != "steps":
        raise click.UsageError(f"{path} is {detected.description}, not a directory of steps")
    return detected


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
