"""Public names: their fields as `help()` shows them, and their import at first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar

T = TypeVar("T")


def document_fields(cls: type[T]) -> type[T]:
    """Copy the lines of a named tuple's "Attributes:" section to its fields; a class decorator.

    Without it `help()` shows "Alias for field number 3". Annotations are shown as written, not as
    ForwardRef('int').
    """
    for name, text in attributes_of(cls.__doc__ or "").items():
        vars(cls)[name].__doc__ = text
    for types in (cls.__annotations__, cls.__new__.__annotations__):
        for name, value in types.items():
            if isinstance(value, ForwardRef):
                types[name] = value.__forward_arg__
    return cls


def attributes_of(doc: str) -> dict[str, str]:
    r"""Return the text of each name in the "Attributes:" section of a docstring.

    >>> attributes_of("Attributes:\n    x, y: where it\n      lies.\n    z: depth.\n")
    {'x': 'where it lies.', 'y': 'where it lies.', 'z': 'depth.'}
    """
    section = doc.partition("Attributes:\n")[2]
    indent = len(section) - len(section.lstrip(" "))
    docs: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        text = line.strip()
        if not text:
            break
        if line[indent] == " ":  # continues the line above
            docs.update({name: f"{docs[name]} {text}" for name in names})
        else:
            head, _, text = text.partition(": ")
            names = head.split(", ")
            docs.update(dict.fromkeys(names, text))
    return docs


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
        value = imported(module_of[name], name)
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *module_of})

    return get_attribute, list_names


def imported(module: str, name: str) -> Any:
    """Return a name of a module that is imported at this moment.

    A method of a public value reaches the verb of a higher layer so, as format modules are reached
    by their names in a table.
    """
    return getattr(importlib.import_module(module), name)
