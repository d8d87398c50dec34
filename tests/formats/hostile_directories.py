"""Directories to refuse: each a few small files, and what is said of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cordwood
from cordwood import CordwoodError
from tests.memory import traced_memory

__all__ = ["Case", "changed", "dumped", "refused", "written"]

MAX_MESSAGE = 700  # beside the path
ROOM_BYTES = 16 << 20

Files = Mapping[str, bytes | None]


class Case(NamedTuple):
    """A change of a good directory, and the refusal that it must get."""

    files: Files  # None: not there
    error: type[CordwoodError]
    message: str


def dumped(members: Any) -> bytes:
    return json.dumps(members).encode()


def changed(members: Mapping[str, Any], **changes: Any) -> bytes:
    """Return a JSON object with changed members; ... as a value leaves the member out."""
    merged = {**members, **changes}
    return dumped({name: value for name, value in merged.items() if value is not ...})


def written(folder: Path, good: Files, other: Files) -> Path:
    for name, data in {**good, **other}.items():
        if data is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folder


def refused(path: Path, case: Case) -> None:
    """Require that load and verify refuse it, in few words and little memory, and name it."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    for call in (cordwood.load, cordwood.verify):
        with (
            traced_memory() as memory,
            pytest.raises(case.error, match=re.escape(case.message)) as caught,
        ):
            call(path)
        public = [
            kind for kind in type(caught.value).__mro__ if kind.__module__ == "cordwood.errors"
        ]
        assert public[0] is case.error
        assert str(path) in str(caught.value)
        assert len(str(caught.value).replace(str(path), "")) < MAX_MESSAGE
        assert memory.peak_bytes < 2 * size + ROOM_BYTES
