"""The commands that look after what is stored: `verify`, `gc` and `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cordwood.cli.arguments import LOCAL_PATH, PATH, SOURCE, format_option, wrong_arguments
from cordwood.cli.bulk_work_options import bulk_work_options, worker_executor
from cordwood.cli.output import columns, fail, json_option, print_answer, time_text
from cordwood.errors import CordwoodError, CorruptionError, IncompleteCheckpointError
from cordwood.message_text import counted, size_text

if TYPE_CHECKING:
    from cordwood.storage.locations import Location

VERIFY_EXAMPLES = """
\b
Examples:
  cordwood verify run/100                       the whole checkpoint, in several threads
  cordwood verify run/100 --sample 5%           a twentieth of each file, chosen at random
  cordwood verify run                           all steps of a run
  cordwood verify run/100 --resume run.verify   continue an interrupted call
  cordwood verify run/100 --workers 8           in eight processes
  cordwood verify run/100 --part 3/16 --journal run.journal   one job of an array
"""

GC_EXAMPLES = """
\b
Examples:
  cordwood gc run/100 --dry-run   only list the files
  cordwood gc run/100
"""

DOCTOR_EXAMPLES = """
\b
Examples:
  cordwood doctor /mnt/checkpoints
  cordwood doctor run/100 --json
  cordwood doctor s3://bucket/run
"""


def _share(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """Return the share that a text such as 5% or 0.05 stands for."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"expected a share such as 5% or 0.05, found {text!r}")
    return share


@click.command("verify", epilog=VERIFY_EXAMPLES, short_help="Check every byte against its digest.")
@click.argument("path", type=SOURCE)
@click.option(
    "--sample",
    default="100%",
    callback=_share,
    help="Check a random share of the blocks: 5% or 0.05.",
)
@click.option("--seed", type=int, help="The seed of the random sample.")
@click.option(
    "--resume",
    type=LOCAL_PATH,
    metavar="FILE",
    help="Record verified files in FILE, and skip those that it lists.",
)
@bulk_work_options
@format_option
@json_option
def verify_command(
    path: str,
    sample: float,
    resume: str | None,
    workers: int | None,
    part: tuple[int, int] | None,
    journal: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Read the whole checkpoint at PATH, and check every byte that has a digest.

    Print the leaf, file and byte range of any damage, and exit with 1. Data of other tools that has
    no digests counts as unverified. For a directory of steps, check every step; an unfinished save
    is listed, and is not damage. For the output of a Trainer of Hugging Face, check its model and
    every checkpoint in it.

    With --part, only the tasks of that part are run: a job array runs all of them, each with the
    same --journal. Afterwards the command without --part does what a part has not done, reports on
    all, and removes the journal.
    """
    if resume is not None and sample < 1:
        raise click.UsageError(
            "--resume needs a full check: --sample draws a new sample in each call"
        )
    if journal is not None and sample < 1:
        raise click.UsageError("--journal needs a full check: --sample draws a new sample")
    if resume is not None and (workers, part, journal) != (None, None, None):
        raise click.UsageError("--resume is for one process: --journal does it for several")
    from cordwood.bulk.bulk_arguments import bulk_options
    from cordwood.storage.locations import parse_location
    from cordwood.verifying.verify_checkpoints import VerifyOptions, verify_each

    location = parse_location(path)
    with wrong_arguments(), worker_executor(workers) as executor:
        bulk = bulk_options(executor, part, journal)
        checks = VerifyOptions(
            sample=sample, resume=resume, progress=not as_json, bulk=bulk, **options
        )
        steps = [location, *beside] if (beside := _steps_beside(location)) else []
        try:
            if steps:
                results = verify_each(steps, checks)
            else:
                results = verify_each([location], checks, catch=(CorruptionError,))
        except IncompleteCheckpointError:
            steps = _steps_in(location)
            if not steps:
                raise
            results = verify_each(steps, checks)
    outcomes = [*map(_Outcome, map(str, steps or [location]), results)]
    documents = [outcome.as_json() for outcome in outcomes]
    damaged = any(outcome.damaged for outcome in outcomes)
    document = {**documents[0], "sample": sample}
    lines = [outcome.text(is_step=bool(steps)) for outcome in outcomes]
    if steps:
        document = {"path": path, "damaged": damaged, "sample": sample, "steps": documents}
        lines.append(_summary(str(location), outcomes))
    if part is not None:
        lines.append(f"this is part {part[0]} of {part[1]} alone")
    print_answer("\n".join(lines), document, as_json=as_json)
    if damaged:
        raise click.exceptions.Exit(1)


def _steps_beside(location: Location) -> list[Location]:
    """Return the steps in a local directory that is a checkpoint itself."""
    from cordwood.storage.locations import LocalPath
    from cordwood.storage.paths import is_folder

    is_local_folder = isinstance(location, LocalPath) and is_folder(location)
    return _steps_in(location, beside_a_tree=True) if is_local_folder else []


def _steps_in(location: Location, *, beside_a_tree: bool = False) -> list[Location]:
    """Return the steps in a directory of steps; [] for any other directory.

    With `beside_a_tree`, return those in a directory that is a checkpoint itself.
    """
    from cordwood.loading.detect_checkpoint import detect_checkpoint

    try:
        detected = detect_checkpoint(location)
    except CordwoodError:
        return []
    if (detected.format == "steps") == beside_a_tree:
        return []
    return [location.child(name) for name in detected.steps]


class _Outcome(NamedTuple):
    """The result of verifying one checkpoint: a Verification, or an error."""

    path: str
    result: Any

    @property
    def whole(self) -> bool:
        return not isinstance(self.result, Exception)

    @property
    def damaged(self) -> bool:
        """True for any error but FileNotFoundError (an unfinished save, or one just deleted)."""
        return not self.whole and not isinstance(self.result, FileNotFoundError)

    def text(self, *, is_step: bool) -> str:
        text = str(self.result)
        if self.whole:
            return text
        where = f"{self.path}: " if is_step and not text.startswith(self.path) else ""
        return f"{'damaged' if self.damaged else 'incomplete'}: {where}{text}"

    def as_json(self) -> dict[str, Any]:
        if self.whole:
            return {**self.result._asdict(), "damaged": False}
        return {"path": self.path, "damaged": self.damaged, "message": str(self.result)}


def _summary(path: str, outcomes: Sequence[_Outcome]) -> str:
    whole = [outcome.result for outcome in outcomes if outcome.whole]
    damaged = sum([outcome.damaged for outcome in outcomes])
    counts = {"damaged": damaged, "incomplete": len(outcomes) - len(whole) - damaged}
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    parts.insert(0, f"{len(whole)} without damage")
    size = sum([each.verified_bytes for each in whole])
    steps = counted(len(outcomes), "step")
    if outcomes[0].path == path:
        steps = f"the model and {counted(len(outcomes) - 1, 'checkpoint')} beside it"
    return f"{path}: {steps}: {', '.join(parts)}; {size_text(size)} verified"


@click.command(
    "gc", epilog=GC_EXAMPLES, short_help="Remove files that interrupted saves have left."
)
@click.argument("path", type=PATH)
@click.option("--dry-run", is_flag=True, help="Remove nothing, only list.")
@json_option
def gc_command(path: str, dry_run: bool, as_json: bool) -> None:
    """Remove files that interrupted saves have left in the directory at PATH, or beside it.

    Of a run, look into its unfinished steps, too. Every saved tree stays as it is. Files of saves
    that are still running, and files that cordwood did not write, are kept. In an object store
    files count as those of a running save for 24 hours after they were written; their number is
    printed.
    """
    from cordwood.api.gc import gc

    report = gc(path, dry_run=dry_run)
    lines = [*report, f"{len(report)} {'would be removed' if dry_run else 'removed'}"]
    lines += [
        f"{each} {'would be' if dry_run else 'was'} written again" for each in report.rewritten
    ]
    if report.young_files:
        lines.append(
            f"{counted(report.young_files, 'file')} ({size_text(report.young_bytes)}) without an "
            "index may be of a running save: if no index refers to them by then, gc removes them "
            f"from {time_text(report.young_until)} on"
        )
    document = {
        "path": path,
        "dry_run": dry_run,
        "removed": list(report),
        "rewritten": report.rewritten,
        "young_files": report.young_files,
        "young_bytes": report.young_bytes,
        "young_until": time_text(report.young_until, utc=True),
    }
    print_answer("\n".join(lines), document, as_json=as_json)


@click.command(
    "doctor", epilog=DOCTOR_EXAMPLES, short_help="Test whether a path is safe to save to."
)
@click.argument("path", type=PATH, default=".")
@json_option
def doctor_command(path: str, as_json: bool) -> None:
    """Test whether PATH (default: the current directory) is safe to save checkpoints to.

    In a directory, write and flush 32 MiB, and test renames of files and directories, hard links,
    locks, inode numbers and O_DIRECT. In an object store, test conditional writes, ranges, an
    upload in parts, listing and deletion, and measure the latency and the rate of 64 MiB. Remove
    all test files or objects afterwards. Exit with 1 if something that a save needs does not work.
    """
    from cordwood.storage.doctor import examine
    from cordwood.storage.locations import LocalPath, parse_location

    location = parse_location(path)
    if isinstance(location, LocalPath):
        findings, limited = examine(location), "slower"
    else:
        from cordwood.formats.table import DEFAULT
        from cordwood.storage.object_stores.store_doctor import examine_store

        try:
            findings, limited = examine_store(location, index_name=DEFAULT.index_name), "limited"
        except (CordwoodError, OSError) as e:
            fail(e, wants_json=as_json, code=1)
    problems = [each for each in findings if each.needed and not each.good]
    document = {"path": path, "safe": not problems, "findings": [f._asdict() for f in findings]}
    rows = [
        ["ok" if each.good else "PROBLEM" if each.needed else limited, each.name, each.text]
        for each in findings
    ]
    verdict = "not safe to save to" if problems else "safe to save to"
    print_answer(f"{columns(rows)}\n{path}: {verdict}", document, as_json=as_json)
    if problems:
        raise click.exceptions.Exit(1)
