"""cordwood diff: what two checkpoints differ in."""

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
  cordwood diff run/100 run/200 --select 'params'   of some leaves
  cordwood diff a.safetensors b.msgpack --no-values what needs no reading
"""


@click.command("diff", epilog=EXAMPLES, short_help="Compare two checkpoints.")
@click.argument("a", type=SOURCE)
@click.argument("b", type=SOURCE)
@click.option("--select", multiple=True, help="A pattern of key paths to compare; repeatable.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Names for leaves of A.")
@click.option("--strict", is_flag=True, help="numpy or jax arrays, and weak types, count too.")
@click.option("--values/--no-values", default=True, help="Whether to compare elements.")
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
    """Compare the checkpoints A and B, of whatever formats, leaf by leaf.

    What both have under equal digests is not read. Of values that differ: how many elements, and
    the largest absolute and relative difference. Exits with 1 where there is a difference.
    """
    from cordwood.api.diff import diff

    found = diff(
        a,
        b,
        select=list(select) or None,
        rename=pairs_of("--rename", "OLD=NEW", rename),
        strict=strict,
        values=values,
    )
    if as_json:
        print_json(found.to_json())
    else:
        print_text(str(found))
    if not found.equal:
        raise click.exceptions.Exit(1)
