"""The resource of a verification."""

from __future__ import annotations

from cordwood.errors import CorruptionError
from cordwood.index import Source
from cordwood.io.progress import Report
from cordwood.verifying.verify_checkpoints import VerifyOptions, verify_checkpoint
from cordwood.viewer.sources import Sources

_MAX_NAMES = 100


def is_checked(source: Source) -> bool:
    """Return True if the bytes of a file have digests or checksums."""
    return source.digests is not None or source.header_digest is not None or bool(source.checksums)


def verify_view(sources: Sources, report: Report | None, *, source: str) -> dict[str, object]:
    """Check every byte of a source against its digest, and return the result."""
    with sources.checkpoint(source) as checkpoint:
        unchecked = [each.name for each in checkpoint.index.sources if not is_checked(each)]
    try:
        options = VerifyOptions(progress=report, format=sources.arguments.format)
        result = verify_checkpoint(sources.path(source), options)
        problems, sizes = [], (result.verified_bytes, result.unverified_bytes)
    except CorruptionError as e:
        problems, sizes = str(e).split("\n"), (0, 0)
    return {
        "ok": not problems,
        "checked_bytes": sizes[0],
        "unchecked_bytes": sizes[1],
        "text": problems[0] if problems else str(result),
        "problems": problems,
        "without_digests": unchecked[:_MAX_NAMES],
    }
