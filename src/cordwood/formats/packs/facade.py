"""The layout of packs: what `cordwood.formats.directory_formats` asks of one."""

from __future__ import annotations

from cordwood.formats.packs.locate import collect
from cordwood.formats.packs.open import open_contents, prefixes_at
from cordwood.formats.packs.save import plan_job, refuse_foreign
from cordwood.formats.packs.verify import verify_all

__all__ = ["collect", "open_contents", "plan_job", "prefixes_at", "refuse_foreign", "verify_all"]
