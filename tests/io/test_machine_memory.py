"""The memory of the machine is that of the container, if the process is in one."""

from __future__ import annotations

import builtins
import io
import os
from typing import Any

import pytest

from cordwood.io.buffers import machine_memory_bytes

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, PHYSICAL),
        ({"memory.max": "max\n"}, PHYSICAL),
        ({"memory.max": "1073741824\n"}, 1 << 30),
        ({"memory/memory.limit_in_bytes": "4096\n"}, 4096),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, PHYSICAL),  # no limit
    ],
)
def test_the_limit_of_the_control_group(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    real = builtins.open

    def fake_open(path: Any, *arguments: Any, **options: Any) -> Any:
        name = str(path).removeprefix("/sys/fs/cgroup/")
        if name == str(path):
            return real(path, *arguments, **options)
        if name in files:
            return io.StringIO(files[name])
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", fake_open)
    assert machine_memory_bytes() == expected
