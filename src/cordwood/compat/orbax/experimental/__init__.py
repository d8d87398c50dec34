"""The place of version 1 of Orbax's calls."""

from __future__ import annotations

from cordwood.compat.orbax.experimental import v1 as v1
