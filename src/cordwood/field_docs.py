"""Documentation of the fields of named tuples, for `help()` and editors."""

from __future__ import annotations

from typing import ForwardRef, TypeVar

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
