"""The texts of outcomes that are no errors."""

from __future__ import annotations

EQUAL = "equal"
EQUAL_DATA = "equal, keys as their key data"
AS_ORBAX = "as Orbax: "  # its own checkpoint of the tree comes back, or fails, in the same way
ABSENT = "not written"
