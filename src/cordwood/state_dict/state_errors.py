"""The errors of state dicts, which name the container and the path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cordwood.errors import CordwoodError, MismatchError
from cordwood.message_text import counted

# Callers of Flax and of eFormer catch different builtin errors for the same problem; these classes
# inherit all of them.


class KeyCollisionError(CordwoodError, ValueError):
    """Two keys of one dict have the same string form, and a state dict keeps only strings."""


class NonStringKeyError(CordwoodError, TypeError, AssertionError):
    """A handler returned a dict with a key that is not a string."""


class WrongStateError(MismatchError, TypeError, AttributeError):
    """The state for a container is not a dict."""


class MissingEntryError(MismatchError, KeyError):
    """The state dict of a container lacks an entry that the container needs."""

    __str__ = Exception.__str__  # that of KeyError shows the repr of the message


def error_text(error: Exception) -> str:
    """Return the class and the message of any error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  (the error holds an object that cannot be printed)
        return type(error).__name__


def describe_state(value: Any) -> str:
    """Describe a value: 'float32[4,8]', 'None', 'a dict of 3 entries', 'an int'."""
    if value is None:
        return "None"
    if isinstance(value, np.generic):
        return f"a numpy {value.dtype.name} scalar"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        name = dtype.name if isinstance(dtype, np.dtype) else str(dtype)
        return f"{name}[{','.join(map(str, shape))}]"
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    if isinstance(value, (Mapping, list, tuple)):
        return f"{article} {name} of {counted(len(value), 'entry', 'entries')}"
    return f"{article} {name}"
