"""The commands `cordwood delta` and `cordwood apply`: write a difference, and apply it."""

from __future__ import annotations

import click

from cordwood.cli.arguments import PATH, SOURCE, wrong_arguments
from cordwood.cli.output import json_option, print_answer

EXAMPLES = """
\b
Examples:
  cordwood delta run/100 run/200 delta-100-200      what changes from step 100 to 200
  cordwood apply run/100 delta-100-200 copy-of-200  step 200 again
"""
_prefix_option = click.option("--prefix", help="The tree to use, if a checkpoint holds several.")
_force_option = click.option(
    "--force", "overwrite", is_flag=True, help="Replace the checkpoint at DESTINATION."
)


@click.command("delta", epilog=EXAMPLES, short_help="Write what changes between two checkpoints.")
@click.argument("base", type=SOURCE)
@click.argument("target", type=SOURCE)
@click.argument("destination", type=PATH)
@_prefix_option
@_force_option
@json_option
def delta_command(
    base: str, target: str, destination: str, prefix: str | None, overwrite: bool, as_json: bool
) -> None:
    """Write to DESTINATION what changes from the checkpoint BASE to the checkpoint TARGET.

    The result, a delta, is a small checkpoint. `cordwood apply` makes TARGET of BASE and the delta,
    bit for bit. The two may be of any formats; their trees must have the same leaves, of the same
    shapes and dtypes.
    """
    from cordwood.api.delta import delta

    with wrong_arguments():
        report = delta(
            base, target, destination, prefix=prefix, overwrite=overwrite, progress=not as_json
        )
    print_answer(str(report), report._asdict(), as_json=as_json)


@click.command("apply", epilog=EXAMPLES, short_help="Make a checkpoint of its base and a delta.")
@click.argument("base", type=SOURCE)
@click.argument("delta", type=SOURCE)
@click.argument("destination", type=PATH)
@_prefix_option
@click.option("--format", help="The format to write: safetensors, msgpack, packs, zarr, ...")
@_force_option
@json_option
def apply_command(
    base: str,
    delta: str,
    destination: str,
    prefix: str | None,
    format: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write to DESTINATION the checkpoint that DELTA makes of BASE.

    Every part of the result is compared with its digest in DELTA before it is written. If BASE is
    another checkpoint than the one that DELTA was made from, nothing is written.
    """
    from cordwood.api.apply_delta import apply_delta

    with wrong_arguments():
        conversion = apply_delta(
            base,
            delta,
            destination,
            prefix=prefix,
            format=format,
            overwrite=overwrite,
            progress=not as_json,
        )
    print_answer(str(conversion), conversion._asdict(), as_json=as_json)
