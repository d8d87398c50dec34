"""cordwood convert: one format into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from cordwood.cli.output import json_option, print_json, print_text
from cordwood.cli.path_arguments import PATH, SOURCE
from cordwood.cli.progress_bar import bar
from cordwood.cli.shared_options import cast_of, pairs_of
from cordwood.errors import CordwoodError

EXAMPLES = """
\b
Examples:
  cordwood convert run/100 model.safetensors --select params --rename params=
  cordwood convert model.msgpack run/1 --cast bf16
  cordwood convert orbax/100 run/100 --cast 'params/**=bf16' --cast 'opt_state/**=f32'
  cordwood convert bert.safetensors run/1 --rename '*.weight=*/kernel' --transpose '**/kernel'
  cordwood convert run/100 run/100-z --format zarr --compression zstd
  cordwood convert orbax/100 run/100 --prefix ema --to-prefix ema
  cordwood convert run/100 hub --select params --rename params= --format hugging_face \\
      --max-shard-bytes 5000000000
"""


@click.command("convert", epilog=EXAMPLES, short_help="Write a checkpoint in another format.")
@click.argument("source", type=SOURCE)
@click.argument("destination", type=PATH)
@click.option("--select", multiple=True, help="A pattern of key paths to write; repeatable.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Other key paths; repeatable.")
@click.option(
    "--transpose", multiple=True, help="A pattern of matrices to write transposed; repeatable."
)
@click.option(
    "--cast",
    multiple=True,
    metavar="DTYPE|PATTERN=DTYPE",
    help="A dtype for floating arrays, or for those of a pattern; repeatable.",
)
@click.option("--lossy", is_flag=True, help="Write what the format can hold, where it is not all.")
@click.option("--prefix", help="Which tree of a directory that holds several; default: all.")
@click.option("--to-prefix", help="Write the tree under this prefix, beside those of others.")
@click.option("--force", is_flag=True, help="Replace the checkpoint at DESTINATION.")
@click.option(
    "--format",
    "format_",
    help="The format to write: safetensors, msgpack, packs, zarr, hugging_face, ...",
)
@click.option(
    "--layout",
    type=click.Choice(["packs", "zarr", "hugging_face"]),
    help="The same as --format, of a directory.",
)
@click.option(
    "--max-shard-bytes", type=click.IntRange(min=1), help="Of the arrays in one safetensors file."
)
@click.option("--compression", type=click.Choice(["zstd", "blosc"]), help="Of --format zarr.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), help="How far a compressed SOURCE may grow."
)
@click.option(
    "--scratch", type=PATH, metavar="DIR", help="Room for what a compressed SOURCE holds."
)
@json_option
def command(
    source: str,
    destination: str,
    select: Sequence[str],
    rename: Sequence[str],
    transpose: Sequence[str],
    cast: Sequence[str],
    lossy: bool,
    prefix: str | None,
    to_prefix: str | None,
    force: bool,
    format_: str | None,
    layout: Any,
    compression: Any,
    max_shard_bytes: int | None,
    max_bytes: int | None,
    scratch: str | None,
    as_json: bool,
) -> None:
    """Write what SOURCE holds as DESTINATION, whose suffix says the format.

    The elements pass through a few MiB at a time. A SOURCE that is compressed as a whole is first
    decompressed on the disk of DESTINATION, or in --scratch, into a file that has no name: nothing
    is left of it. Where the format has no place for something (msgpack for lists, PRNG keys or weak
    types), that is an error which names all of it.

    A checkpoint at DESTINATION is kept, unless --force is given. A SOURCE of several trees, such as
    an Orbax composite, is converted whole into a directory; a file holds one, and --select,
    --rename and --transpose are for one: name it with --prefix.
    """
    from cordwood.api.convert import convert

    try:
        with bar("converting", quiet=as_json) as progress:
            done = convert(
                source,
                destination,
                select=list(select) or None,
                rename=pairs_of("--rename", "OLD=NEW", rename),
                transpose=list(transpose) or None,
                cast=cast_of(cast),
                lossy=lossy,
                format=format_,
                layout=layout,
                compression=compression,
                prefix=prefix,
                to_prefix=to_prefix,
                overwrite=force,
                max_shard_bytes=max_shard_bytes,
                max_bytes=max_bytes,
                scratch=scratch,
                progress=progress,
            )
    except ValueError as e:
        if isinstance(e, CordwoodError):
            raise
        raise click.UsageError(str(e)) from e
    if as_json:
        print_json(done._asdict())
        return
    print_text(str(done))
