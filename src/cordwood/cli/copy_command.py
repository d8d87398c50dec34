"""The command `cordwood copy`: bring a checkpoint, or a run, to another place."""

from __future__ import annotations

import click

from cordwood.cli.arguments import PATH, SOURCE, wrong_arguments
from cordwood.cli.bulk_work_options import AFTER_PARTS, bulk_work_options, worker_executor
from cordwood.cli.output import json_option, print_answer

EXAMPLES = """
\b
Examples:
  cordwood copy run/100 s3://bucket/run/100   one step
  cordwood copy run/latest gs://bucket/best   the newest step
  cordwood copy s3://bucket/run run           all steps of a run
  cordwood copy run /backup/run --verify      also check what is there already
  cordwood copy run s3://bucket/run --workers 8       in eight processes
  cordwood copy run s3://bucket/run --part 3/16       one job of an array
"""


@click.command("copy", epilog=EXAMPLES, short_help="Bring a checkpoint or a run to another place.")
@click.argument("source", type=SOURCE)
@click.argument("destination", type=PATH)
@click.option("--verify", is_flag=True, help="Also check the files that DESTINATION has already.")
@bulk_work_options
@json_option
def copy_command(
    source: str,
    destination: str,
    verify: bool,
    workers: int | None,
    part: tuple[int, int] | None,
    journal: str | None,
    as_json: bool,
) -> None:
    """Copy the checkpoint SOURCE, or all steps of the run SOURCE, to DESTINATION, byte for byte.

    Each is a local path or a URL. Every byte is checked against its digest on the way. The step
    that was copied is complete by itself. Steps that DESTINATION has already are skipped, and
    another checkpoint there is never replaced.

    Nothing is compressed: `cordwood convert SOURCE URL --archive` does it on the way to a store.

    A copy that was interrupted leaves whole files, but no checkpoint. Call it again: it copies the
    rest.

    With --part, only data files of that part are copied: a job array copies all of them. Afterwards
    the command without --part copies what is missing, and writes the indexes.
    """
    from cordwood.api.copy import copy

    with wrong_arguments(), worker_executor(workers) as executor:
        report = copy(
            source,
            destination,
            verify=verify,
            progress=not as_json,
            executor=executor,
            part=part,
            journal=journal,
        )
    text = str(report)
    if part is not None:
        text += AFTER_PARTS
    print_answer(text, report._asdict(), as_json=as_json)
