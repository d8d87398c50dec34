"""The zarr layout: what `cordwood.formats.directory_formats` asks of one."""

from __future__ import annotations

from cordwood.formats.zarr.commit import refuse_to_fill as refuse_foreign
from cordwood.formats.zarr.open import open_contents, prefixes_at
from cordwood.formats.zarr.save import plan_job
from cordwood.formats.zarr.verify import verify_all

__all__ = ["collect", "open_contents", "plan_job", "prefixes_at", "refuse_foreign", "verify_all"]


def collect(path: object, *, dry_run: bool) -> list[str]:
    """Nothing: what saves that died have left lies beside the directory, and `gc` looks there."""
    del path, dry_run
    return []
