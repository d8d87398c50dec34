"""The runner for tables of hostile files: each row a file or a directory, and its refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

import cordwood
from cordwood import CordwoodError
from tests.memory import traced_memory
from tests.old_files import write_old

__all__ = [
    "Case",
    "Row",
    "changed",
    "damaged",
    "dumped",
    "refused",
    "refused_call",
    "refused_file",
    "require_tree_or_error",
    "written",
]

MAX_MESSAGE = 600  # beside the path
ROOM_BYTES = 16 << 20

Files = Mapping[str, bytes | None]
Row: TypeAlias = tuple[bytes, type[Exception], str]  # the content of a file, and its refusal


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
    """Require that load and verify refuse a directory, in few words and little memory."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    for call in (cordwood.load, cordwood.verify):
        error = refused_call(partial(call, path), str(path), size, case.error, case.message)
        assert str(path) in str(error)


def refused_file(
    path: Path,
    row: Row,
    *,
    calls: Iterable[Callable[..., object]] = (cordwood.load, cordwood.verify),
    format: str | None = None,
) -> None:
    """Require that load and verify refuse a file, in few words and little memory."""
    data, error, message = row
    path.write_bytes(data)
    for call in calls:
        caught = refused_call(
            partial(call, path, format=format), str(path), len(data), error, message
        )
        assert str(caught).startswith(f"{path}: ")


def refused_call(
    call: Callable[[], object],
    name: str,
    size: int,
    error: type[Exception],
    message: str,
    *,
    room_bytes: int = ROOM_BYTES,
) -> Exception:
    """Require that a call refuses what has a name and a size; return the error."""
    with (
        traced_memory() as memory,
        pytest.raises(error, match=re.escape(message)) as caught,
    ):
        call()
    public = [kind for kind in type(caught.value).__mro__ if kind.__module__ == "cordwood.errors"]
    assert public[0] is error
    assert len(str(caught.value).replace(name, "")) < MAX_MESSAGE
    assert memory.peak_bytes < 2 * size + room_bytes
    return caught.value


def damaged(data: bytes, *, step: int = 1, bits: Sequence[int] | None = None) -> Iterator[bytes]:
    """Yield the data cut at every `step` bytes, then with one bit changed in each byte.

    Args:
        data: the good content.
        step: the distance of the cuts.
        bits: these bits of each byte are changed, one after the other; without it, one of them.
    """
    for i in range(0, len(data), step):
        yield data[:i]
    for i, byte in enumerate(data):
        for bit in [i % 8] if bits is None else bits:
            yield data[:i] + bytes([byte ^ 1 << bit]) + data[i + 1 :]


def require_tree_or_error(
    path: Path, file: Path, contents: Iterable[bytes], *, format: str | None = None
) -> list[Any]:
    """Require a tree, or an error that names the path, for each content of one of its files.

    Returns:
        The trees.
    """
    good, trees = file.read_bytes(), []
    for content in contents:
        write_old(file, content)
        try:
            trees.append(cordwood.load(path, to="numpy", format=format))
        except CordwoodError as e:
            assert str(path) in str(e)  # noqa: PT017
    file.write_bytes(good)
    return trees
