"""cordwood convert: one format into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from cordwood.cli.bar import bar
from cordwood.cli.options import cast_of, pairs_of
from cordwood.cli.output import json_option, print_json, print_text, size_text

__all__ = ["command"]

EXAMPLES = """
\b
Examples:
  cordwood convert run/100 model.safetensors --select params --rename params=
  cordwood convert model.msgpack run/1 --cast bf16
  cordwood convert orbax/100 run/100 --cast 'params/**=bf16' --cast 'opt_state/**=f32'
  cordwood convert run/100 run/100-z --layout zarr --compression zstd
"""


@click.command("convert", epilog=EXAMPLES)
@click.argument("source")
@click.argument("destination")
@click.option("--select", multiple=True, help="A pattern of key paths to write; repeatable.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Other key paths; repeatable.")
@click.option(
    "--cast",
    multiple=True,
    metavar="DTYPE|PATTERN=DTYPE",
    help="A dtype for floating arrays, or for those of a pattern; repeatable.",
)
@click.option("--lossy", is_flag=True, help="Write what the format can hold, where it is not all.")
@click.option("--prefix", help="Which tree of a directory that holds several.")
@click.option("--format", "format_", help="The format to write, if the suffix does not say it.")
@click.option("--layout", type=click.Choice(["packs", "zarr"]), help="Of a directory to write.")
@click.option("--compression", type=click.Choice(["zstd", "blosc"]), help="Of the zarr layout.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), help="How far a compressed SOURCE may grow."
)
@click.option("--scratch", metavar="DIR", help="Room for what a compressed SOURCE holds.")
@json_option
def command(
    source: str,
    destination: str,
    select: Sequence[str],
    rename: Sequence[str],
    cast: Sequence[str],
    lossy: bool,
    prefix: str | None,
    format_: str | None,
    layout: Any,
    compression: Any,
    max_bytes: int | None,
    scratch: str | None,
    as_json: bool,
) -> None:
    """Write what SOURCE holds as DESTINATION, whose suffix says the format.

    The elements pass through a few MiB at a time. A SOURCE that is compressed as a whole is first
    decompressed on the disk of DESTINATION, or in --scratch, into a file that has no name: nothing
    is left of it. Where the format has no place for something (msgpack for lists, PRNG keys or weak
    types), that is an error which names all of it.
    """
    from cordwood.api.conversion import convert

    with bar("converting", quiet=as_json) as progress:
        done = convert(
            source,
            destination,
            select=list(select) or None,
            rename=pairs_of("--rename", "OLD=NEW", rename),
            cast=cast_of(cast),
            lossy=lossy,
            format=format_,
            layout=layout,
            compression=compression,
            prefix=prefix,
            max_bytes=max_bytes,
            scratch=scratch,
            progress=progress,
        )
    if as_json:
        print_json(done._asdict())
        return
    lines = [f"lost: {line}" for line in done.lost]
    noun = "leaf" if done.leaves == 1 else "leaves"
    lines.append(
        f"{done.destination}: {done.leaves} {noun}, {size_text(done.size_bytes)}, from "
        f"{done.source_format} to {done.format}"
    )
    print_text("\n".join(lines))
