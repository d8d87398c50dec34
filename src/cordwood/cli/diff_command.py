"""The command `cordwood diff`: compare two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cordwood.cli.output import json_option, print_json, print_text
from cordwood.cli.path_arguments import SOURCE
from cordwood.cli.shared_options import pairs_of

EXAMPLES = """
\b
Examples:
  cordwood diff run/100 run/200                     structure, dtypes, and values
  cordwood diff run/100 run/200 --select 'params'   only some leaves
  cordwood diff a.safetensors b.msgpack --no-values without reading elements
"""


@click.command("diff", epilog=EXAMPLES, short_help="Compare two checkpoints.")
@click.argument("a", type=SOURCE)
@click.argument("b", type=SOURCE)
@click.option(
    "--select", multiple=True, help="Compare only the leaves that match this pattern; repeatable."
)
@click.option(
    "--rename",
    multiple=True,
    metavar="OLD=NEW",
    help="Change key paths of A before comparing; repeatable.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Report numpy against jax arrays, and weak types, as differences.",
)
@click.option("--values/--no-values", default=True, help="Compare elements. Default: --values.")
@json_option
def command(
    a: str,
    b: str,
    select: Sequence[str],
    rename: Sequence[str],
    strict: bool,
    values: bool,
    as_json: bool,
) -> None:
    """Compare the checkpoints A and B leaf by leaf. Their formats may differ.

    Data with equal digests in both is not read. For arrays that differ, print the number of
    differing elements and the largest absolute and relative difference. Exit with 1 if there is a
    difference.
    """
    from cordwood.api.diff import diff

    difference = diff(
        a,
        b,
        select=list(select) or None,
        rename=pairs_of("--rename", "OLD=NEW", rename),
        strict=strict,
        values=values,
    )
    if as_json:
        print_json(difference.to_json())
    else:
        print_text(str(difference))
    if not difference.equal:
        raise click.exceptions.Exit(1)
