"""Disks for single tests: an ext4 image on a loop device, or a tmpfs of a limited size."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_TOOLS = ("mkfs.ext4", "mount", "umount")


def why_no_power_cuts(folder: str) -> str | None:
    """Return the reason why no disk image can be mounted on this machine, or None."""
    if os.geteuid() != 0:
        return "mounting a disk image needs root"
    missing = [tool for tool in _TOOLS if find_tool(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    image = os.path.join(folder, "try.img")
    try:
        make_disk(image, 8 << 20)
        with mounted(image, os.path.join(folder, "try")):
            return None
    except subprocess.CalledProcessError as e:
        return f"{e.cmd[0]} failed: {e.stderr.decode().strip()}"
    finally:
        os.unlink(image)


def make_disk(image: str, size_bytes: int) -> None:
    """Make an empty ext4 file system in a file, without blocks reserved for root."""
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", image)


@contextmanager
def mounted(image: str, place: str, *, options: Sequence[str] = ()) -> Iterator[str]:
    """Mount the file system of an image at a directory, which is created."""
    os.makedirs(place, exist_ok=True)
    _run("mount", "-o", ",".join(["loop", *options]), image, place)
    try:
        yield place
    finally:
        _run("umount", place)


@contextmanager
def mounted_memory(size_bytes: int, place: str) -> Iterator[str]:
    """Mount a tmpfs of a given size at a directory, which is created."""
    os.makedirs(place, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", place)
    try:
        yield place
    finally:
        _run("umount", place)


def find_tool(name: str) -> str | None:
    """Return the path of a program, also of one that only root has in its PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(name: str, *args: str) -> None:
    subprocess.run([find_tool(name) or name, *args], check=True, capture_output=True)
