"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

from tests.children import SRC

MODULES = [
    ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((SRC / "cordwood").rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("module", [*MODULES, "contents_from_tables"])
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(
        importlib.import_module(module), extraglobs={"np": np}, optionflags=doctest.ELLIPSIS
    )
    assert result.attempted
    assert not result.failed
