"""The files in the root of a run that are cordwood's, beside those of its steps."""

from __future__ import annotations

import re

from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.storage.entry_content import split_content
from cordwood.storage.locks.root_probe import is_probe
from cordwood.storage.paths import POOL, SAVE_ID, temporary_prefix

# A lock, what was being removed or written, the pool of a store.
_HIDDEN = re.compile(
    r"\.[^/]+\.cordwood-[0-9a-f]{16}\.(deleted|damaged|stage)(?:/(.*))?", re.DOTALL
)
_LOCK = f"{temporary_prefix('steps')}lock"
_POOLED = re.compile(rf"{SAVE_ID.pattern}/(?:cells-\d{{1,7}}\.json|\.removed-[0-9a-f]{{16}})")


def belongs_to_run(name: str) -> bool:
    """Return True for a file in the root of a run that is cordwood's, beside those of its steps."""
    if name == _LOCK or is_probe(name):
        return True
    rules = storage_of(DEFAULT).RULES
    hidden = _HIDDEN.fullmatch(name)
    if hidden is not None:  # what others had put into a step that was being deleted is theirs
        if hidden[1] == "stage" or not hidden[2]:
            return True
        return (
            "/" not in hidden[2]
            and not split_content([hidden[2]], [], rules, has_own_sidecars=True).foreign
        )
    folder, _, inner = name.partition("/")
    if folder != POOL:
        return False
    return (
        inner == "steps.json"
        or _POOLED.fullmatch(inner) is not None
        or rules.is_data_file(f"../{name}")
    )
