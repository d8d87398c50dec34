"""The command `cordwood convert`: write a checkpoint in another format."""

from __future__ import annotations

from typing import Any

import click

from cordwood.cli.arguments import (
    LOCAL_PATH,
    PATH,
    SOURCE,
    cast_option,
    patterns_option,
    rename_option,
    wrong_arguments,
)
from cordwood.cli.bulk_work_options import AFTER_PARTS, bulk_work_options, worker_executor
from cordwood.cli.output import json_option, print_answer
from cordwood.cli.recipe_options import recipe_of, recipe_options

EXAMPLES = """
\b
Examples:
  cordwood convert run/100 model.safetensors --select params --rename params=
  cordwood convert model.msgpack run/1 --cast bf16
  cordwood convert orbax/100 run/100 --cast 'params/**=bf16' --cast 'opt_state/**=f32'
  cordwood convert bert.safetensors run/1 --rename '*.weight=*/kernel' --transpose '**/kernel'
  cordwood convert hub/model.safetensors run/1 --recipe mine.json --config hub/config.json
  cordwood convert run/100 run/100-z --archive
  cordwood convert run/100 run/100-z --archive --workers 8
  cordwood convert run/latest s3://bucket/archives/100 --archive
  cordwood convert orbax/100 run/100 --prefix ema --to-prefix ema
  cordwood convert run/100 hub --select params --rename params= --format hugging_face \\
      --max-shard-bytes 5000000000
"""


@click.command("convert", epilog=EXAMPLES, short_help="Write a checkpoint in another format.")
@click.argument("source", type=SOURCE)
@click.argument("destination", type=PATH)
@patterns_option("--select", help="Write only the leaves that match this pattern; repeatable.")
@rename_option(help="Change key paths; repeatable.")
@patterns_option(
    "--transpose", help="Write the matrices that match this pattern transposed; repeatable."
)
@recipe_options
@cast_option(
    help="Cast floating-point arrays to DTYPE: all, or those that match PATTERN; repeatable.",
)
@click.option(
    "--lossy",
    is_flag=True,
    help="Write what can be read and what the format can store, and leave out the rest.",
)
@click.option("--prefix", help="The tree to convert, if SOURCE holds several. Default: all.")
@click.option("--to-prefix", help="Write the tree under this prefix, beside other trees.")
@click.option("--force", "overwrite", is_flag=True, help="Replace the checkpoint at DESTINATION.")
@click.option(
    "--format",
    help="The format to write: safetensors, msgpack, packs, zarr, hugging_face, orbax, ...",
)
@click.option(
    "--max-shard-bytes",
    type=click.IntRange(min=1),
    help="The largest size of the arrays in one safetensors file.",
)
@click.option(
    "--files-from",
    type=SOURCE,
    metavar="DIR",
    help="The directory of the hub whose config.json, tokenizer and so on are written beside the "
    "weights; for --format hugging_face.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "blosc", "archive"]),
    help="Compress the arrays; for --format zarr.",
)
@click.option(
    "--archive",
    is_flag=True,
    help="Write the smallest form that zarr libraries read: --format zarr --compression archive.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    help="The largest decompressed size of a compressed SOURCE.",
)
@click.option(
    "--scratch",
    type=LOCAL_PATH,
    metavar="DIR",
    help="The directory for the decompressed copy of a compressed SOURCE.",
)
@bulk_work_options
@json_option
def convert_command(
    source: str,
    destination: str,
    as_json: bool,
    recipe_name: str | None,
    config_file: str | None,
    inverse: bool,
    archive: bool,
    workers: int | None,
    **options: Any,
) -> None:
    """Write the checkpoint SOURCE as DESTINATION. The suffix of DESTINATION names the format.

    The conversion copies a few MiB at a time, so a large SOURCE does not need more memory. A SOURCE
    that is compressed as a whole is first decompressed into an unnamed temporary file, on the disk
    of DESTINATION or in --scratch; nothing is left of it afterwards. If the format cannot store
    something (msgpack cannot store lists, PRNG keys and weak types), the command fails and names
    everything that it would lose.

    An existing checkpoint at DESTINATION is not replaced, unless --force is given. If SOURCE holds
    several trees, such as an Orbax composite checkpoint, and DESTINATION is a directory, all are
    converted. A file holds one tree, and --select, --rename, --transpose and --recipe apply to one
    tree: choose it with --prefix.

    With --part, only data files of that part are written: a job array writes all of them.
    Afterwards the command without --part writes what is missing, and the index.
    """
    from cordwood.api.convert import convert

    if archive:
        if options["format"] not in (None, "zarr") or options["compression"] not in (
            None,
            "archive",
        ):
            raise click.UsageError("--archive is --format zarr --compression archive")
        options.update(format="zarr", compression="archive")
    options["recipe"] = recipe_of(recipe_name, config_file, inverse=inverse)
    with wrong_arguments(), worker_executor(workers) as executor:
        conversion = convert(
            source, destination, progress=not as_json, executor=executor, **options
        )
    text = str(conversion)
    if options["part"] is not None:
        text += AFTER_PARTS
    print_answer(text, conversion._asdict(), as_json=as_json)
