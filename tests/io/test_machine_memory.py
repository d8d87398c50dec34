"""The memory of the machine is that of the container, if the process is in one."""

from __future__ import annotations

import builtins
import io
import os
from typing import Any

import pytest

from cordwood.io.memory.machine_memory import available_memory_bytes, machine_memory_bytes

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
    show_files(monkeypatch, groups, files)
    assert machine_memory_bytes() == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 3 << 30),  # of the machine
        (V2, {"memory.max": "max\n"}, 3 << 30),
        (V2, {"job/memory.max": "9000\n", "job/memory.current": "4000\n"}, 5000),
        (
            V2,
            {
                "job/memory.max": "9000\n",
                "job/memory.current": "4000\n",
                "job/memory.stat": "anon 3000\nactive_file 400\ninactive_file 600\n",
            },
            5600,
        ),
        (V2, {"job/memory.max": "9000\n", "job/memory.current": "9500\n"}, 0),
        (
            V2,
            {
                "job/step/memory.max": "9000\n",
                "job/step/memory.current": "1000\n",
                "memory.max": "20000\n",
                "memory.current": "19000\n",
            },
            1000,
        ),
        (
            V1,
            {
                "memory/job/memory.limit_in_bytes": "9000\n",
                "memory/job/memory.usage_in_bytes": "8000\n",
                "memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 500\n",
            },
            1500,
        ),
        (V2, {"job/memory.max": "9000\n"}, 9000),  # what is used cannot be read
    ],
)
def test_what_is_available_to_the_process(
    monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: int
) -> None:
    show_files(monkeypatch, groups, files)
    assert available_memory_bytes() == expected


def test_the_machine_says_what_is_available() -> None:
    assert 0 < available_memory_bytes() <= machine_memory_bytes()


def show_files(monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str]) -> None:
    """Show the process these control groups, and 3 GiB of available memory."""
    real = builtins.open

    def fake_open(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == "/proc/self/cgroup":
            return io.StringIO(groups)
        if path == "/proc/meminfo":
            return io.StringIO(f"MemTotal: 9 kB\nMemAvailable: {3 << 20} kB\nSwapTotal: 0 kB\n")
        name = str(path).removeprefix("/sys/fs/cgroup/")
        if name == str(path):
            return real(path, *arguments, **options)
        if name in files:
            return io.StringIO(files[name])
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", fake_open)
