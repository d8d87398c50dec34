"""The zarr layout: what `cordwood.api.layouts` asks of one."""

from __future__ import annotations

from cordwood.api.open_zarr import open_contents, prefixes_at
from cordwood.api.place_zarr import refuse_to_fill as refuse_foreign
from cordwood.api.save_zarr import plan_job
from cordwood.api.verify_zarr import verify_all

__all__ = ["collect", "open_contents", "plan_job", "prefixes_at", "refuse_foreign", "verify_all"]


def collect(path: object, *, dry_run: bool) -> list[str]:
    """Nothing: what saves that died have left lies beside the directory, and `gc` looks there."""
    del path, dry_run
    return []
