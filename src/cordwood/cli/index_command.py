"""The command `cordwood index`: make checkpoints that exist readable for another tool."""

from __future__ import annotations

import shlex

import click

from cordwood.cli.arguments import SOURCE, wrong_arguments
from cordwood.cli.output import json_option, print_answer
from cordwood.errors import IncompleteCheckpointError
from cordwood.message_text import counted, size_text

EXAMPLES = """
\b
Examples:
  cordwood index run/100 --orbax                one step
  cordwood index run --orbax --all              all steps of a run
  cordwood index run/100 --orbax --item state   for v1.training.Checkpointer of Orbax
"""


@click.command(
    "index", epilog=EXAMPLES, short_help="Make a checkpoint one of Orbax too, without a copy."
)
@click.argument("path", type=SOURCE)
@click.option("--orbax", is_flag=True, required=True, help="Write the index for Orbax.")
@click.option("--item", metavar="NAME", help="The name of the tree for Orbax.  [default: default]")
@click.option("--all", "is_run", is_flag=True, help="Index all steps of the run PATH.")
@json_option
def index_command(path: str, orbax: bool, item: str | None, is_run: bool, as_json: bool) -> None:
    """Write small files into the checkpoint PATH by which Orbax reads it too.

    They say where in the files of the checkpoint the arrays are, so no array is stored twice. Steps
    that are saved with orbax=True have them. A checkpoint that no manager saved is for Orbax the
    tree itself, unless --item names it. With --all, steps of other tools are passed over.
    """
    del orbax
    from cordwood.loading.locate_step import locate_checkpoint
    from cordwood.manager.orbax_indexes import add_orbax_index, steps_to_index
    from cordwood.storage.locations import LocalPath, parse_location

    location = parse_location(path)
    checkpoints = [location if is_run else locate_checkpoint(location)]
    if is_run and isinstance(location, LocalPath):
        checkpoints = [*steps_to_index(location)]
        if not checkpoints:
            raise click.UsageError(f"{path} has no steps that cordwood saved")
    try:
        with wrong_arguments():
            indexes = [add_orbax_index(each, item) for each in checkpoints]
    except IncompleteCheckpointError as e:
        steps = []
        if isinstance(location, LocalPath) and not is_run:
            steps = steps_to_index(location)
        if not steps:
            raise
        options = [] if item is None else ["--item", item]
        command = shlex.join(["cordwood", "index", path, "--orbax", "--all", *options])
        raise IncompleteCheckpointError(
            f"{path} is a run, with {counted(len(steps), 'step')} that cordwood saved. To index "
            f"all of them: {command}"
        ) from e
    lines = [
        f"{each.path}: for Orbax too: {size_text(each.added_bytes)}, {counted(each.links, 'link')}"
        for each in indexes
    ]
    document = {"path": path, "indexes": [each._asdict() for each in indexes]}
    print_answer("\n".join(lines), document, as_json=as_json)
