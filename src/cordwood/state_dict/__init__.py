"""State dicts in the manner of Flax: any tree as nested dicts with string keys, and back.

Names are imported when they are first used, so that importing this package needs no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood.state_dict.restore_path import current_path as current_path
    from cordwood.state_dict.state_dicts import from_state_dict as from_state_dict
    from cordwood.state_dict.state_dicts import to_state_dict as to_state_dict
    from cordwood.state_dict.type_handlers import is_serializable as is_serializable
    from cordwood.state_dict.type_handlers import (
        register_serialization_state as register_serialization_state,
    )

_MODULE_OF = {
    "current_path": "restore_path",
    "from_state_dict": "state_dicts",
    "is_serializable": "type_handlers",
    "register_serialization_state": "type_handlers",
    "to_state_dict": "state_dicts",
}

__all__ = [
    "current_path",
    "from_state_dict",
    "is_serializable",
    "register_serialization_state",
    "to_state_dict",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
