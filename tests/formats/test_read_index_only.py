"""Listing leaves by the index alone refuses what opening refuses, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.cli.list_leaves import list_leaves
from cordwood.errors import CorruptionError, FormatError, LimitError, PrefixError
from cordwood.formats.packs import cordwood_json as packs_index
from cordwood.formats.zarr import tensorstore_index as zarr_index
from tests.memory import traced_memory

INDEXES = {"packs": packs_index, "zarr": zarr_index}
LAYOUTS = pytest.mark.parametrize("layout", ["packs", "zarr"])


def said(call: Callable[..., Any], path: Path, error: type[Exception], **options: Any) -> str:
    with pytest.raises(error) as caught:
        call(path, **options)
    assert type(caught.value) is error
    return str(caught.value)


@LAYOUTS
def test_an_index_past_the_limit_is_not_read(tmp_path: Path, layout: Any) -> None:
    cordwood.save(tmp_path / "c", {"w": np.ones(3)}, format=layout)
    assert [row.key_path for row in list_leaves(tmp_path / "c").rows] == ["w"]
    index, most = tmp_path / "c" / INDEXES[layout].INDEX_NAME, INDEXES[layout].MAX_INDEX_BYTES
    with index.open("r+b") as file:
        file.truncate(most + 1)  # a hole: the disk holds next to nothing
    with traced_memory() as memory:
        message = said(list_leaves, tmp_path / "c", LimitError)
    assert memory.peak_bytes < 1 << 20
    assert message == f"{index}: {most + 1} bytes; expected at most {most}"
    assert message == said(cordwood.open, tmp_path / "c", LimitError)


@LAYOUTS
@pytest.mark.parametrize("prefix", [None, "", "zz"])
def test_a_prefix_that_is_not_there(tmp_path: Path, layout: Any, prefix: str | None) -> None:
    for name in ("a", "b"):
        cordwood.save(tmp_path / "c", {"w": np.ones(3)}, format=layout, prefix=name)
    message = said(list_leaves, tmp_path / "c", PrefixError, prefix=prefix)
    assert "['a', 'b']" in message
    assert message == said(cordwood.open, tmp_path / "c", PrefixError, prefix=prefix)


def test_an_index_without_items(tmp_path: Path) -> None:
    (tmp_path / packs_index.INDEX_NAME).write_bytes(packs_index.encode_index({}))
    message = said(list_leaves, tmp_path, FormatError)
    assert message == f"{tmp_path} holds no items" == said(cordwood.open, tmp_path, FormatError)


@LAYOUTS
def test_an_index_that_is_a_link(tmp_path: Path, layout: Any) -> None:
    cordwood.save(tmp_path / "c", {"w": np.ones(3)}, format=layout)
    index = tmp_path / "c" / INDEXES[layout].INDEX_NAME
    index.rename(tmp_path / "elsewhere")
    index.symlink_to(tmp_path / "elsewhere")
    message = said(list_leaves, tmp_path / "c", CorruptionError)
    assert message.startswith(f"{index} is, or lies behind, a symbolic link")
    assert message == said(cordwood.open, tmp_path / "c", CorruptionError)
