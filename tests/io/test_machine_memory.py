"""The memory of the machine is that of the container, if the process is in one."""

from __future__ import annotations

import builtins
import io
import os
from typing import Any

import pytest

from cordwood.io.buffers import machine_memory_bytes

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


V1 = "4:memory:/job/step\n3:cpuset:/\n"
V2 = "0::/job/step\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, PHYSICAL),
        (V2, {"memory.max": "max\n"}, PHYSICAL),
        (V2, {"job/step/memory.max": "1073741824\n"}, 1 << 30),
        (V2, {"job/step/memory.max": "max\n", "job/memory.max": "8192\n"}, 8192),
        ("0::/\n", {"memory.max": "8192\n"}, 8192),
        (V1, {"memory/job/step/memory.limit_in_bytes": "4096\n"}, 4096),
        (V1, {"memory/job/memory.limit_in_bytes": "4096\n"}, 4096),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, PHYSICAL),  # no limit
    ],
)
def test_the_limit_of_the_control_group(
    monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: int
) -> None:
    real = builtins.open

    def fake_open(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == "/proc/self/cgroup":
            return io.StringIO(groups)
        name = str(path).removeprefix("/sys/fs/cgroup/")
        if name == str(path):
            return real(path, *arguments, **options)
        if name in files:
            return io.StringIO(files[name])
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", fake_open)
    assert machine_memory_bytes() == expected
