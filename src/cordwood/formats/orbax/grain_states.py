"""The states of a data iterator, as Grain's CheckpointSave writes them beside trees of Orbax.

<step>/<item>/process_0-of-2.json           the state of each process
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FILE_PATTERN = "process_{index}-of-{count}.json"
_FILE = re.compile(r"process_[0-9]+-of-[0-9]+\.json")


def has_states(names: Iterable[str]) -> bool:
    """Return whether an item holds states, judged by the names of its files."""
    return any(map(_FILE.fullmatch, names))
