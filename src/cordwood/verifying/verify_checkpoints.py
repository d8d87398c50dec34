"""The checks of checkpoints against their digests, one after another or divided into tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from numbers import Real
from typing import NamedTuple

from cordwood.bulk.bulk_arguments import refuse_journal_within
from cordwood.bulk.run_bulk import BulkOptions
from cordwood.errors import CordwoodError
from cordwood.io.progress import ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.stale_handles import retry_stale
from cordwood.io.verify_sample import VerifySample
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import Location, parse_local_path
from cordwood.storage.verify_record import VerifyRecord
from cordwood.verifying.verify_in_tasks import verify_in_tasks
from cordwood.verifying.verify_one import verify_one
from cordwood.verifying.verify_result import Verification
from cordwood.verifying.verify_tasks import BlockChoice


class VerifyOptions(NamedTuple):
    """The arguments of `verify` for one checkpoint or for several."""

    sample: float = 1.0
    seed: int | None = None
    resume: str | os.PathLike[str] | None = None
    progress: ProgressOption = None
    format: str | None = None
    max_bytes: int | None = None
    bulk: BulkOptions = BulkOptions()


def verify_checkpoint(location: Location, options: VerifyOptions) -> Verification:
    """Verify the checkpoint that a caller means, as `verify`."""
    (verification,) = verify_each([locate_checkpoint(location)], options, catch=())
    assert isinstance(verification, Verification)
    return verification


def verify_each(
    checkpoints: Sequence[Location],
    options: VerifyOptions,
    *,
    catch: tuple[type[Exception], ...] = (CordwoodError, OSError),
) -> list[Verification | Exception]:
    """Verify several checkpoints, such as the steps of a run, with one sample and one record.

    Args:
        checkpoints: their locations.
        options: the arguments of `verify`.
        catch: errors of one checkpoint that are returned in place of its result.

    Returns:
        The result of each.
    """
    sample, seed, resume, progress, format, max_bytes, bulk = options
    if not isinstance(sample, Real) or not 0 < sample <= 1:
        raise ValueError(f"sample={sample!r}: expected a share: more than 0, and at most 1")
    if resume is not None and sample < 1:
        raise ValueError("resume= is for checking all: a sample is chosen anew by each call")
    if resume is not None and bulk.divides:
        raise ValueError("resume= is for one process: journal= does it with executor= and part=")
    if bulk.journal is not None and sample < 1:
        raise ValueError("journal= is for checking all: a sample is chosen anew by each call")
    refuse_journal_within(bulk.journal, checkpoints)
    record = None
    if resume is not None:
        record = VerifyRecord(parse_local_path(resume, purpose="for resume=").text)
    chosen = VerifySample(sample, seed, record)
    results: list[Verification | Exception] = []
    with ExitStack() as stack:
        report = stack.enter_context(progress_display(progress, "verifying"))
        if bulk.divides:
            return verify_in_tasks(
                checkpoints,
                bulk,
                BlockChoice(sample, seed),
                report,
                format=format,
                max_bytes=max_bytes,
                catch=catch,
            )
        size_bytes = 0 if report is None else int(sum(map(size_on_disk, checkpoints)) * sample)
        stack.enter_context(report_progress(size_bytes, report))
        for location in checkpoints:
            before = chosen.checked_bytes
            try:
                verification = retry_stale(
                    partial(verify_one, location, chosen, format=format, max_bytes=max_bytes)
                )
            except catch as e:
                results.append(e)
                continue
            if sample < 1:
                verification = verification.of_part(chosen.checked_bytes - before)
            results.append(verification)
    whole = all(isinstance(verification, Verification) for verification in results)
    if record is not None and whole:
        record.delete()
    return results
