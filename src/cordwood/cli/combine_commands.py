"""The commands `cordwood combine` and `cordwood average`: weighted sums of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import click

from cordwood.cli.arguments import (
    PATH,
    SOURCE,
    cast_option,
    detected_run,
    patterns_option,
    rename_option,
    wrong_arguments,
)
from cordwood.cli.output import json_option, print_answer
from cordwood.errors import UnsupportedFormatError

EXAMPLES = """
\b
Examples:
  cordwood combine run/800=0.5 run/900=0.5 mean
  cordwood combine chat=1 code=1 base=-1 both.safetensors
  cordwood combine run/latest=1 out --select params --cast bf16
"""
AVERAGE_EXAMPLES = """
\b
Examples:
  cordwood average run mean.safetensors --last 5 --select params --rename params=
"""
_ROUNDED = 0.02  # three times 0.33 is a mean
_HELP_OF_OTHERS = (
    "Leaves that are no floating-point arrays: equal (an error if they differ), or those of the "
    "first or the last checkpoint."
)


def _options(command: Any) -> Any:
    """Add the options of both commands."""
    for option in reversed(
        (
            patterns_option(
                "--select", help="Only the leaves that match this pattern; repeatable."
            ),
            rename_option(help="Change key paths; repeatable."),
            cast_option(help="The DTYPE of the result: of all arrays, or of some; repeatable."),
            click.option(
                "--accumulate",
                type=click.Choice(["float32", "float64"]),
                default="float32",
                show_default=True,
                help="The dtype in which elements are added up.",
            ),
            click.option(
                "--others",
                type=click.Choice(["equal", "first", "last"]),
                default="equal",
                show_default=True,
                help=_HELP_OF_OTHERS,
            ),
            click.option("--prefix", help="The tree to use, if a checkpoint holds several."),
            click.option("--format", help="The format to write: safetensors, packs, zarr, ..."),
            click.option(
                "--max-shard-bytes",
                type=click.IntRange(min=1),
                help="The largest size of the arrays in one safetensors file.",
            ),
            click.option(
                "--force", "overwrite", is_flag=True, help="Replace the checkpoint at DESTINATION."
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


@click.command("combine", epilog=EXAMPLES, short_help="Write a weighted sum of checkpoints.")
@click.argument("terms", nargs=-1, required=True, metavar="PATH=WEIGHT...")
@click.argument("destination", type=PATH)
@_options
def combine_command(terms: Sequence[str], destination: str, as_json: bool, **options: Any) -> None:
    """Write to DESTINATION the sum of checkpoints, each multiplied by its weight.

    They may be of any formats, and must have the same leaves, of the same shapes and dtypes. Arrays
    of floating-point numbers are added up in float32, and rounded once. The rest (step counters,
    random keys, texts) must be equal in all, unless --others says from which checkpoint to take it.
    """
    weights: dict[str, float] = {}
    for term in terms:
        parsed = _parse_term(term)
        if parsed is None:
            raise click.BadParameter(f"expected PATH=WEIGHT, such as run/800=0.5, found {term!r}")
        path, weight = parsed
        if path in weights:
            raise click.BadParameter(f"{path!r} has two weights")
        weights[path] = weight
    if _parse_term(destination) is not None:
        raise click.UsageError(
            f"expected DESTINATION after the checkpoints, found {destination!r}; write "
            f"{destination + '/'!r} for a directory of that name"
        )
    total = sum(weights.values())
    if min(weights.values()) > 0 and not math.isclose(total, 1, rel_tol=_ROUNDED):
        click.echo(f"note: the weights add up to {total:g}; those of a mean add up to 1", err=True)
    _combine(destination, weights, as_json, options)


def _parse_term(text: str) -> tuple[str, float] | None:
    """Return the path and the weight of PATH=WEIGHT; None for another text."""
    path, _, weight = text.rpartition("=")
    try:
        return (path, float(weight)) if path else None
    except ValueError:
        return None


@click.command("average", epilog=AVERAGE_EXAMPLES, short_help="Write the mean of the last steps.")
@click.argument("run", type=SOURCE)
@click.argument("destination", type=PATH)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The number of steps, the newest of RUN.",
)
@_options
def average_command(run: str, destination: str, last: int, as_json: bool, **options: Any) -> None:
    """Write to DESTINATION the mean of the last steps of RUN.

    It is `cordwood combine` with the weight 1/N for each step. On a disk the steps are pinned, so
    that a running job does not delete them meanwhile. --others last takes the step counter and the
    random keys of the newest step; --select params leaves them out.
    """
    from cordwood.manager.missing_steps import finished_step
    from cordwood.manager.step_reader import StepReader

    reader = StepReader(run)
    steps = reader.steps()[-last:]
    if len(steps) < last:
        if not steps:
            detected_run(run)
        raise click.UsageError(f"{run}: expected {last} complete steps, found {len(steps)}")
    with ExitStack() as stack:
        for step in steps:
            with suppress(UnsupportedFormatError):  # an object store has no locks to pin a step by
                stack.enter_context(reader.pin(step))
        weights = {finished_step(reader._steps, step).path: 1 / last for step in steps}
        _combine(destination, weights, as_json, options)


def _combine(
    destination: str, weights: Mapping[str, float], as_json: bool, options: Mapping[str, Any]
) -> None:
    from cordwood.api.combine import combine

    with wrong_arguments():
        conversion = combine(destination, {**weights}, progress=not as_json, **options)
    print_answer(str(conversion), conversion._asdict(), as_json=as_json)
