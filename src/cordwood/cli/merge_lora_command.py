"""The command `cordwood merge-lora`: write a base with the updates of a LoRA adapter."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from cordwood.cli.arguments import PATH, SOURCE, cast_option, wrong_arguments
from cordwood.cli.output import json_option, print_answer

EXAMPLES = """
\b
Examples:
  cordwood merge-lora hub/llama peft-adapter merged --format hugging_face
  cordwood merge-lora run/900 lora merged --target 'params/{module}/kernel' \\
      --down '{module}/lora_a' --up '{module}/lora_b' --alpha 16
"""


@click.command("merge-lora", epilog=EXAMPLES, short_help="Merge a LoRA adapter into its base.")
@click.argument("base", type=SOURCE)
@click.argument("adapter", type=SOURCE)
@click.argument("destination", type=PATH)
@click.option("--target", help="The leaves to change, with {module} for the part that varies.")
@click.option("--down", help="The down factors, of shape (in, rank).")
@click.option("--up", help="The up factors, of shape (rank, out).")
@click.option("--alpha", help="A number, or the leaves that have it.")
@cast_option(help="The DTYPE of the result: of all arrays, or of some; repeatable.")
@click.option("--prefix", help="The tree to use, if BASE holds several.")
@click.option("--format", help="The format to write: safetensors, packs, hugging_face, ...")
@click.option(
    "--max-shard-bytes",
    type=click.IntRange(min=1),
    help="The largest size of the arrays in one safetensors file.",
)
@click.option("--force", "overwrite", is_flag=True, help="Replace the checkpoint at DESTINATION.")
@json_option
def merge_lora_command(
    base: str, adapter: str, destination: str, as_json: bool, **options: Any
) -> None:
    """Write to DESTINATION the checkpoint BASE with the updates of a LoRA adapter.

    Each matrix W that ADAPTER changes becomes W + alpha / rank * down @ up, rounded once. A
    directory of PEFT needs no names. For other adapters --target, --down, --up and --alpha say
    which leaves belong together. A factor without its target, or with another shape, is an error,
    and so are leaves of ADAPTER that are no factors.
    """
    from cordwood.api.merge_lora import merge_lora

    with suppress(TypeError, ValueError):  # else the name of leaves
        options["alpha"] = float(options["alpha"])
    with wrong_arguments():
        conversion = merge_lora(destination, base, adapter, progress=not as_json, **options)
    print_answer(str(conversion), conversion._asdict(), as_json=as_json)
