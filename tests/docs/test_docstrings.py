"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.children import SRC

MODULES = [
    ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((SRC / "cordwood").rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("module", [*MODULES, "contents_from_tables"])
def test_the_examples_of_docstrings_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    imported = importlib.import_module(module)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in _Finder().find(imported, module, extraglobs={"np": np}):
        runner.run(test)
    assert runner.tries
    assert not runner.failures


class _Finder(doctest.DocTestFinder):
    """A finder that takes a decorated function for one of the module that defines it."""

    def _from_module(self, module: ModuleType | None, object: Any) -> bool:
        plain = inspect.unwrap(object) if inspect.isfunction(object) else object
        return bool(super()._from_module(module, plain))  # type: ignore[misc]
