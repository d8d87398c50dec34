"""The pictures of docs/pictures are small, are shown by a page, and come in both themes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.children import SRC

ROOT = SRC.parent
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def shown() -> set[Path]:
    """Return the files that pages show with `<picture>`."""
    paths = set()
    for page in PAGES:
        for path in re.findall(r'(?:srcset|<img src)="([^"]+)"', page.read_text()):
            paths.add((page.parent / path).resolve())
    return paths


def test_there_are_pictures_in_both_themes() -> None:
    names = {path.stem.rpartition("-")[0] for path in PICTURES}
    assert names
    assert {path.name for path in PICTURES} == {
        f"{name}-{theme}.png" for name in names for theme in ("light", "dark")
    }


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1280, 1000)
    assert len(data) <= 200_000
    assert picture in shown()


def test_pages_show_files_that_are_there() -> None:
    assert all(path.is_file() for path in shown())
