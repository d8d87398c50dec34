"""cordwood stores JAX pytrees: exactly, durably, verified.

Names are imported when they are first used, so that `import cordwood` costs nothing and
trees of numpy arrays are saved and loaded without jax.
"""

from __future__ import annotations

import importlib
import threading  # noqa: F401  (first imported at exit, it takes the main thread for alive)
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "cordwood.api.checkpoint": ("Checkpoint", "open"),
    "cordwood.api.stored_leaf": ("StoredLeaf",),
    "cordwood.api.detect": ("Detected", "detect"),
    "cordwood.api.convert": ("Conversion", "convert"),
    "cordwood.api.gc": ("gc",),
    "cordwood.compat.eformer.tree_deserialize": ("tree_deserialize_leaves",),
    "cordwood.api.diff": ("diff",),
    "cordwood.api.diff_result": ("Diff", "LeafDiff"),
    "cordwood.api.load": ("load",),
    "cordwood.api.save": ("save",),
    "cordwood.api.save_async": ("save_async",),
    "cordwood.compat.eformer.tree_serialize": ("tree_serialize_leaves",),
    "cordwood.api.verify": ("Verification", "verify"),
    "cordwood.io.reusable_memory": ("release_memory",),
    "cordwood.io.progress": ("Progress",),
    "cordwood.io.background_save": ("PendingSave",),
    "cordwood.errors": (
        "CordwoodError",
        "CorruptionError",
        "FormatError",
        "IncompleteCheckpointError",
        "LimitError",
        "LossError",
        "MismatchError",
        "NotACheckpointError",
        "PendingSaveError",
        "PrefixError",
        "ProcessError",
        "StepError",
        "StorageError",
        "TruncatedError",
        "UnsupportedFormatError",
        "UnsupportedLeafError",
    ),
    "cordwood.manager.keep_policies": (
        "KeepAll",
        "KeepAt",
        "KeepBest",
        "KeepEvery",
        "KeepLast",
        "KeepPolicy",
        "KeepWithin",
        "SavedStep",
    ),
    "cordwood.manager.manager": ("CheckpointManager",),
    "cordwood.manager.step_reader": ("StepReader",),
    "cordwood.manager.save_report": ("SaveReport",),
    "cordwood.manager.restore_step": ("Restored",),
    "cordwood.manager.retention": ("PlannedStep", "RetentionPlan"),
    "cordwood.manager.step_items": ("Stateful",),
    "cordwood.manager.save_policies": (
        "AtSteps",
        "EverySeconds",
        "EveryStep",
        "EverySteps",
        "Moment",
        "OnPreemption",
        "SavePolicy",
        "WhenIdle",
    ),
    "cordwood.keypath": ("DictKey", "format_path", "parse_path"),
    "cordwood.msgpack": (
        "compress_bytes",
        "decompress_bytes",
        "from_bytes",
        "from_compressed_bytes",
        "get_serialization_info",
        "load_from_file",
        "msgpack_restore",
        "msgpack_serialize",
        "save_to_file",
        "to_buffers",
        "to_bytes",
        "to_compressed_bytes",
        "validate_serializable",
    ),
    "cordwood.sharding.partition_rules": ("match_partition_rules",),
    "cordwood.compat.eformer.leaf_key_paths": ("is_array_like", "join_key", "leaf_key_paths"),
    "cordwood.state_dict.restore_path": ("current_path",),
    "cordwood.state_dict.state_dicts": ("from_state_dict", "to_state_dict"),
    "cordwood.state_dict.type_handlers": ("is_serializable", "register_serialization_state"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
_SUBMODULES = ("compat", "msgpack", "testing")

__all__ = sorted(_MODULE_OF)

if TYPE_CHECKING:
    from cordwood import compat as compat
    from cordwood import msgpack as msgpack
    from cordwood import testing as testing
    from cordwood.api.checkpoint import Checkpoint as Checkpoint
    from cordwood.api.checkpoint import open as open
    from cordwood.api.convert import Conversion as Conversion
    from cordwood.api.convert import convert as convert
    from cordwood.api.detect import Detected as Detected
    from cordwood.api.detect import detect as detect
    from cordwood.api.diff import diff as diff
    from cordwood.api.diff_result import Diff as Diff
    from cordwood.api.diff_result import LeafDiff as LeafDiff
    from cordwood.api.gc import gc as gc
    from cordwood.api.load import load as load
    from cordwood.api.save import save as save
    from cordwood.api.save_async import save_async as save_async
    from cordwood.api.stored_leaf import StoredLeaf as StoredLeaf
    from cordwood.api.verify import Verification as Verification
    from cordwood.api.verify import verify as verify
    from cordwood.compat.eformer.leaf_key_paths import is_array_like as is_array_like
    from cordwood.compat.eformer.leaf_key_paths import join_key as join_key
    from cordwood.compat.eformer.leaf_key_paths import leaf_key_paths as leaf_key_paths
    from cordwood.compat.eformer.tree_deserialize import (
        tree_deserialize_leaves as tree_deserialize_leaves,
    )
    from cordwood.compat.eformer.tree_serialize import (
        tree_serialize_leaves as tree_serialize_leaves,
    )
    from cordwood.errors import CordwoodError as CordwoodError
    from cordwood.errors import CorruptionError as CorruptionError
    from cordwood.errors import FormatError as FormatError
    from cordwood.errors import IncompleteCheckpointError as IncompleteCheckpointError
    from cordwood.errors import LimitError as LimitError
    from cordwood.errors import LossError as LossError
    from cordwood.errors import MismatchError as MismatchError
    from cordwood.errors import NotACheckpointError as NotACheckpointError
    from cordwood.errors import PendingSaveError as PendingSaveError
    from cordwood.errors import PrefixError as PrefixError
    from cordwood.errors import ProcessError as ProcessError
    from cordwood.errors import StepError as StepError
    from cordwood.errors import StorageError as StorageError
    from cordwood.errors import TruncatedError as TruncatedError
    from cordwood.errors import UnsupportedFormatError as UnsupportedFormatError
    from cordwood.errors import UnsupportedLeafError as UnsupportedLeafError
    from cordwood.io.background_save import PendingSave as PendingSave
    from cordwood.io.progress import Progress as Progress
    from cordwood.io.reusable_memory import release_memory as release_memory
    from cordwood.keypath import DictKey as DictKey
    from cordwood.keypath import format_path as format_path
    from cordwood.keypath import parse_path as parse_path
    from cordwood.manager.keep_policies import KeepAll as KeepAll
    from cordwood.manager.keep_policies import KeepAt as KeepAt
    from cordwood.manager.keep_policies import KeepBest as KeepBest
    from cordwood.manager.keep_policies import KeepEvery as KeepEvery
    from cordwood.manager.keep_policies import KeepLast as KeepLast
    from cordwood.manager.keep_policies import KeepPolicy as KeepPolicy
    from cordwood.manager.keep_policies import KeepWithin as KeepWithin
    from cordwood.manager.keep_policies import SavedStep as SavedStep
    from cordwood.manager.manager import CheckpointManager as CheckpointManager
    from cordwood.manager.restore_step import Restored as Restored
    from cordwood.manager.retention import PlannedStep as PlannedStep
    from cordwood.manager.retention import RetentionPlan as RetentionPlan
    from cordwood.manager.save_policies import AtSteps as AtSteps
    from cordwood.manager.save_policies import EverySeconds as EverySeconds
    from cordwood.manager.save_policies import EveryStep as EveryStep
    from cordwood.manager.save_policies import EverySteps as EverySteps
    from cordwood.manager.save_policies import Moment as Moment
    from cordwood.manager.save_policies import OnPreemption as OnPreemption
    from cordwood.manager.save_policies import SavePolicy as SavePolicy
    from cordwood.manager.save_policies import WhenIdle as WhenIdle
    from cordwood.manager.save_report import SaveReport as SaveReport
    from cordwood.manager.step_items import Stateful as Stateful
    from cordwood.manager.step_reader import StepReader as StepReader
    from cordwood.msgpack import compress_bytes as compress_bytes
    from cordwood.msgpack import decompress_bytes as decompress_bytes
    from cordwood.msgpack import from_bytes as from_bytes
    from cordwood.msgpack import from_compressed_bytes as from_compressed_bytes
    from cordwood.msgpack import get_serialization_info as get_serialization_info
    from cordwood.msgpack import load_from_file as load_from_file
    from cordwood.msgpack import msgpack_restore as msgpack_restore
    from cordwood.msgpack import msgpack_serialize as msgpack_serialize
    from cordwood.msgpack import save_to_file as save_to_file
    from cordwood.msgpack import to_buffers as to_buffers
    from cordwood.msgpack import to_bytes as to_bytes
    from cordwood.msgpack import to_compressed_bytes as to_compressed_bytes
    from cordwood.msgpack import validate_serializable as validate_serializable
    from cordwood.sharding.partition_rules import match_partition_rules as match_partition_rules
    from cordwood.state_dict.restore_path import current_path as current_path
    from cordwood.state_dict.state_dicts import from_state_dict as from_state_dict
    from cordwood.state_dict.state_dicts import to_state_dict as to_state_dict
    from cordwood.state_dict.type_handlers import is_serializable as is_serializable
    from cordwood.state_dict.type_handlers import (
        register_serialization_state as register_serialization_state,
    )


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is not None:
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"cordwood.{name}")
    raise AttributeError(f"module 'cordwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_SUBMODULES})
