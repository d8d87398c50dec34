"""The command `cordwood prune`: delete the steps of a run that a policy does not keep."""

from __future__ import annotations

from typing import Any

import click

from cordwood.cli.arguments import PATH, detected_run
from cordwood.cli.output import json_option, print_answer
from cordwood.errors import CordwoodError
from cordwood.message_text import counted, printable, size_text

EXAMPLES = """
\b
Examples:
  cordwood prune run --keep "last 3 | every 1000 | best 1 loss" --dry-run
  cordwood prune run --keep "last 10 & within 7d" --yes
"""


@click.command("prune", epilog=EXAMPLES, short_help="Delete the steps that a policy does not keep.")
@click.argument("run", type=PATH)
@click.option(
    "--keep",
    required=True,
    metavar="POLICY",
    help="last N, every N, best N METRIC [max], at STEP ..., within 7d; joined by | and &.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing, only show what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def prune_command(run: str, keep: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete the steps of RUN that the policy does not keep, as a CheckpointManager would.

    Print each step with the reason, and the bytes that go, and ask. The newest step stays, whatever
    the policy says. Steps that are pinned, being saved or damaged, steps of other tools, published
    versions of weights, and steps that hold files which cordwood did not write stay too.
    """
    from cordwood.manager.delete_steps import plan_prune, prune
    from cordwood.policies.parse_keep import parse_keep
    from cordwood.storage.locations import parse_location

    try:
        policy = parse_keep(keep)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--keep") from e
    try:
        plan = plan_prune(parse_location(run), policy)
    except ValueError as e:
        if isinstance(e, CordwoodError):
            raise
        problem = f"{e}. Nothing was deleted: correct or leave out that part of the policy"
        raise click.BadParameter(problem, param_hint="--keep") from e
    if not plan.retention.steps:
        detected_run(run)
    size = "" if plan.freed_bytes is None else f", {size_text(plan.freed_bytes)}"
    what = f"{run}: {counted(len(plan.deleted), 'step')} of {len(plan.retention.steps)}{size}"
    rows = str(plan.retention)
    if plan.unmanaged:
        stay = f"{counted(len(plan.unmanaged), 'step')} that no CheckpointManager saved"
        rows += f"\n{stay}: kept; to remove one: {plan.unmanaged[0].removal_command}"
    text = f"{rows}\n{what}".lstrip("\n")
    document: dict[str, Any] = {
        "path": run,
        "steps": [row._asdict() for row in plan.retention.steps],
        "freed_bytes": plan.freed_bytes,
        "deleted": [],
        "refused": {},
    }
    if dry_run or not plan.deleted:
        print_answer(f"{text}: would be deleted", document, as_json=as_json)
        return
    if not yes:
        click.echo(printable(text), err=True)
        try:
            is_confirmed = click.confirm("Delete them?", err=True)
        except click.Abort:  # no terminal, and no answer
            question = "nothing was deleted: pass --yes where nobody can answer"
            raise click.UsageError(question) from None
        if not is_confirmed:
            print_answer("nothing was deleted", document, as_json=as_json)
            raise click.exceptions.Exit(1)
    removal = prune(plan)
    refused = {
        **dict.fromkeys(removal.in_use, "it is in use"),
        **removal.refused,
        **{entry: str(error) for entry, error in removal.failed.items()},
    }
    numbers = {step.entry: step.step for step in plan.deleted}
    document["deleted"] = sorted([numbers[entry] for entry in removal.removed])
    document["refused"] = refused
    lines = [f"{run}: {counted(len(removal.removed), 'step')} deleted"]
    lines += [f"{entry} stays: {reason}" for entry, reason in refused.items()]
    print_answer("\n".join(lines), document, as_json=as_json)
    if refused:
        raise click.exceptions.Exit(1)
