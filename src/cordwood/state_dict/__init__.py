"""State dicts in the manner of Flax: any tree as nested dicts with string keys, and back.

Names are imported when they are first used, so that importing this package needs no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.public_names import lazy_names

if TYPE_CHECKING:
    from cordwood.state_dict.handlers import is_serializable as is_serializable
    from cordwood.state_dict.handlers import (
        register_serialization_state as register_serialization_state,
    )
    from cordwood.state_dict.state_dicts import from_state_dict as from_state_dict
    from cordwood.state_dict.state_dicts import to_state_dict as to_state_dict
    from cordwood.state_dict.state_path import current_path as current_path

_MODULE_OF = {
    "current_path": "cordwood.state_dict.state_path",
    "from_state_dict": "cordwood.state_dict.state_dicts",
    "is_serializable": "cordwood.state_dict.handlers",
    "register_serialization_state": "cordwood.state_dict.handlers",
    "to_state_dict": "cordwood.state_dict.state_dicts",
}

__all__ = sorted(_MODULE_OF)

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
