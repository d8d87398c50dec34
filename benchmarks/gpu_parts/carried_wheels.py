"""Wheels in a folder, for machines that cannot install packages."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path


def unpack_missing(wheels: Path, folder: Path) -> list[str]:
    """Unpack the wheels whose modules cannot be imported into a folder; return their file names.

    Nothing is installed: a wheel is a zip archive of what belongs on sys.path.
    """
    unpacked = []
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            if any(is_missing(name) for name in _modules_of(archive)):
                archive.extractall(folder)
                unpacked.append(wheel.name)
    return unpacked


def is_missing(module: str) -> bool:
    """Return True if a top-level module cannot be found."""
    return importlib.util.find_spec(module) is None


def _modules_of(archive: zipfile.ZipFile) -> set[str]:
    """Return the names of the packages and modules at the top of a wheel."""
    names = {name.split("/")[0] for name in archive.namelist() if name.endswith((".py", ".so"))}
    tops = {name.split(".")[0] for name in names if not name.endswith((".dist-info", ".data"))}
    return {name for name in tops if name.isidentifier()}
