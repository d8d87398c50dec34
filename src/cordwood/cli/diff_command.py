"""The command `cordwood diff`: compare two checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cordwood.cli.arguments import SOURCE, patterns_option, rename_option, wrong_arguments
from cordwood.cli.bulk_work_options import bulk_work_options, worker_executor
from cordwood.cli.output import columns, fitted, json_option, print_answer, print_table, print_text
from cordwood.cli.recipe_options import recipe_of, recipe_options

if TYPE_CHECKING:
    from cordwood.comparing.differences import Diff
    from cordwood.comparing.leaf_diff import LeafDiff

EXAMPLES = """
\b
Examples:
  cordwood diff run/100 run/200                     structure, dtypes, and values
  cordwood diff run/100 run/200 --select 'params'   only some leaves
  cordwood diff run/100 run/200 --prefix ema        one tree of several
  cordwood diff run/100 run/200 --stats             a table of all leaves that changed
  cordwood diff run/100 run/200 --digests           without reading elements
  cordwood diff a.safetensors b.msgpack --no-values structure and dtypes only
  cordwood diff run/100 run/200 --workers 8         in eight processes
"""

_TITLES = (
    *("leaf", "type", "changed", "relative L2", "max abs", "cosine"),
    *("sign flips", "new NaN", "new Inf"),
)


@click.command("diff", epilog=EXAMPLES, short_help="Compare two checkpoints.")
@click.argument("a", type=SOURCE)
@click.argument("b", type=SOURCE)
@patterns_option("--select", help="Compare only the leaves that match this pattern; repeatable.")
@click.option(
    "--prefix", help="The tree to compare, if the directories hold several. Default: all of them."
)
@rename_option(help="Change key paths of A before comparing; repeatable.")
@recipe_options
@click.option(
    "--strict",
    is_flag=True,
    help="Report numpy against jax arrays, and weak types, as differences.",
)
@click.option("--values/--no-values", default=True, help="Compare elements. Default: --values.")
@click.option(
    "--digests",
    is_flag=True,
    help="Compare structure and digests only; leaves that these cannot decide are listed.",
)
@click.option(
    "--stats",
    is_flag=True,
    help="Print a table of the leaves that differ: first those with new NaN or infinite elements, "
    "then by relative L2.",
)
@click.option(
    "--delta", "with_delta", is_flag=True, help="Also print the size of a delta from A to B."
)
@bulk_work_options
@json_option
def diff_command(
    a: str,
    b: str,
    values: bool,
    digests: bool,
    stats: bool,
    with_delta: bool,
    as_json: bool,
    recipe_name: str | None,
    config_file: str | None,
    inverse: bool,
    workers: int | None,
    **options: Any,
) -> None:
    """Compare the checkpoints A and B leaf by leaf. Their formats may differ.

    Data with equal digests in both is not read. For arrays that differ, print the number of
    differing elements, the largest absolute and relative difference, and the relative L2 distance.
    A leaf with the same elements at another key path counts as renamed. Exit with 1 if there is a
    difference.

    If A and B are directories of several trees, all trees are compared, and a line begins with the
    tree in brackets. --prefix chooses one; --select, --rename and --recipe apply to one: the tree
    without a prefix, unless --prefix is given. --recipe applies to A. What was not compared is
    named.

    With --part, only the elements of that part are compared. With the same --journal for all parts,
    the command without --part then adds up what they have counted.
    """
    if digests and (stats or not values):
        raise click.UsageError("--digests reads no elements: it excludes --stats and --no-values")
    if with_delta and (digests or stats or not values):
        raise click.UsageError("--delta excludes --digests, --stats and --no-values")
    if stats and not values:
        raise click.UsageError("--no-values reads no elements: it excludes --stats")
    from cordwood.api.diff import diff

    options["recipe"] = recipe_of(recipe_name, config_file, inverse=inverse)
    options |= {"values": "digests" if digests else values, "progress": not as_json}
    with wrong_arguments(), worker_executor(workers) as executor:
        difference = diff(a, b, executor=executor, **options)
    if stats and not difference.equal and not as_json:
        _print_statistics(difference)
    else:
        delta = _delta_size(a, b, options["prefix"]) if with_delta else {}
        lines = [str(difference), *[f"a delta has {text}" for text in delta.values()]]
        print_answer("\n".join(lines), {**difference.to_json(), **delta}, as_json=as_json)
    if not difference.equal:
        raise click.exceptions.Exit(1)


def _delta_size(a: str, b: str, prefix: str | None) -> dict[str, str]:
    """Return the size of a delta as text, under its key in the JSON document."""
    from cordwood.deltas.compare_versions import compare_versions
    from cordwood.deltas.delta_report import share_text
    from cordwood.index import size_in_memory
    from cordwood.loading.checkpoint import open_at
    from cordwood.message_text import size_text
    from cordwood.storage.locations import parse_location

    base, target = parse_location(a), parse_location(b)
    with open_at(base, prefix=prefix) as old, open_at(target, prefix=prefix) as new:
        tiles = compare_versions(old._reader, new._reader).tiles
        size = sum([len(tile.encoded) for tile in tiles])
        whole = sum(map(size_in_memory, new.index.leaves))
    return {"delta": f"{size_text(size)} {share_text(size, whole)}"}


def _print_statistics(difference: Diff) -> None:
    """Print a table of the leaves whose values were compared, and lines for other differences."""
    compared = [leaf for leaf in difference.leaves if leaf.size]
    rows = [_row(leaf) for leaf in sorted(compared, key=_severity, reverse=True)]
    head = str(difference).partition("\n")[0]
    others = [str(leaf) for leaf in difference.leaves if not leaf.size]
    lines = [f"  {line}" for line in [*difference.trees, *others, *difference.containers]]
    if print_table(_TITLES, rows, head, right=range(2, len(_TITLES))):
        head = ""
    elif rows:
        lines = [columns(fitted([_TITLES, *rows]), right=range(2, len(_TITLES))), *lines]
    if head or lines:
        print_text("\n".join(filter(None, [head, *lines])))


def _severity(leaf: LeafDiff) -> tuple[bool, float]:
    """Return the sort key of a leaf."""
    relative_l2 = -1.0 if leaf.relative_l2 is None else leaf.relative_l2
    return leaf.new_nan + leaf.new_inf > 0, relative_l2


def _row(leaf: LeafDiff) -> list[str]:
    return [
        f"[{leaf.prefix}] {leaf.key_path}" if leaf.prefix else leaf.key_path,
        leaf.a if leaf.a == leaf.b else f"{leaf.a} | {leaf.b}",
        "" if leaf.share is None else _percent(leaf.share),
        "" if leaf.relative_l2 is None else f"{leaf.relative_l2:.4g}",
        "" if leaf.max_abs is None else f"{leaf.max_abs:.4g}",
        "" if leaf.cosine is None else f"{leaf.cosine:.6f}",
        *map(str, (leaf.sign_flips, leaf.new_nan, leaf.new_inf)),
    ]


def _percent(share: float) -> str:
    """Return a share as text; 0% and 100% are exact.

    >>> [_percent(share) for share in (0.0, 1e-9, 0.25, 0.999999, 1.0)]
    ['0%', '<0.01%', '25%', '>99.99%', '100%']
    """
    if 0 < share < 0.0001 or 0.9999 < share < 1:
        return "<0.01%" if share < 0.5 else ">99.99%"
    return f"{100 * share:.4g}%"
