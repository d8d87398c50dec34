"""Lazy names: the names of a public module that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    module: str, module_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a module whose names are imported lazily.

    Args:
        module: the name of the public module.
        module_of: for each of its names, the module that defines the name.
    """
    namespace = vars(sys.modules[module])

    def get_attribute(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *module_of})

    return get_attribute, list_names
