"""The layout of packs: what `cordwood.api.layouts` asks of one."""

from __future__ import annotations

from cordwood.api.open_packs import open_contents, prefixes_at
from cordwood.api.save_packs import plan_job, refuse_foreign
from cordwood.api.stores import collect
from cordwood.api.verify_packs import verify_all

__all__ = ["collect", "open_contents", "plan_job", "prefixes_at", "refuse_foreign", "verify_all"]
