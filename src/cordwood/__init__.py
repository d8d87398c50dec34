"""cordwood stores JAX pytrees: exactly, durably, verified.

Names are imported when they are first used, so that `import cordwood` costs nothing and
trees of numpy arrays are saved and loaded without jax.
"""

from __future__ import annotations

import importlib
import threading  # noqa: F401  (first imported at exit, it takes the main thread for alive)
import warnings
from typing import TYPE_CHECKING, Any

from cordwood.threads.import_in_thread import import_in_thread

__version__ = "0.1.0"

# Type checkers read these imports, Python reads _NAMES_OF; tests/test_public_names.py compares
# the two.
if TYPE_CHECKING:
    from cordwood import compat as compat
    from cordwood import errors as errors
    from cordwood import keypath as keypath
    from cordwood import msgpack as msgpack
    from cordwood import policies as policies
    from cordwood import recipes as recipes
    from cordwood import results as results
    from cordwood import state_dict as state_dict
    from cordwood import testing as testing
    from cordwood.api.apply_delta import apply_delta as apply_delta
    from cordwood.api.combine import combine as combine
    from cordwood.api.convert import convert as convert
    from cordwood.api.copy import copy as copy
    from cordwood.api.delta import delta as delta
    from cordwood.api.detect import detect as detect
    from cordwood.api.diff import diff as diff
    from cordwood.api.gc import gc as gc
    from cordwood.api.load import load as load
    from cordwood.api.merge_lora import merge_lora as merge_lora
    from cordwood.api.open_checkpoint import open as open
    from cordwood.api.open_combined import open_combined as open_combined
    from cordwood.api.save import save as save
    from cordwood.api.save_async import save_async as save_async
    from cordwood.api.verify import verify as verify
    from cordwood.compat.eformer.serialization import (
        tree_deserialize_leaves as tree_deserialize_leaves,
    )
    from cordwood.compat.eformer.serialization import tree_serialize_leaves as tree_serialize_leaves
    from cordwood.errors import CordwoodError as CordwoodError
    from cordwood.io.memory.memory_for_next_load import release_memory as release_memory
    from cordwood.keypath import DictKey as DictKey
    from cordwood.loading.checkpoint import Checkpoint as Checkpoint
    from cordwood.loading.stored_leaf import StoredLeaf as StoredLeaf
    from cordwood.manager.manager import CheckpointManager as CheckpointManager
    from cordwood.manager.mirror import Mirror as Mirror
    from cordwood.manager.step_reader import StepReader as StepReader
    from cordwood.msgpack import from_bytes as from_bytes
    from cordwood.msgpack import load_from_file as load_from_file
    from cordwood.msgpack import msgpack_restore as msgpack_restore
    from cordwood.msgpack import msgpack_serialize as msgpack_serialize
    from cordwood.msgpack import save_to_file as save_to_file
    from cordwood.msgpack import to_bytes as to_bytes
    from cordwood.policies.keep_policies import KeepBest as KeepBest
    from cordwood.policies.keep_policies import KeepEvery as KeepEvery
    from cordwood.policies.keep_policies import KeepLast as KeepLast
    from cordwood.policies.save_policies import EverySeconds as EverySeconds
    from cordwood.policies.save_policies import EverySteps as EverySteps
    from cordwood.publishing.follower import WeightFollower as WeightFollower
    from cordwood.publishing.publisher import WeightPublisher as WeightPublisher
    from cordwood.saving.background_saves import PendingSave as PendingSave
    from cordwood.sharding.partition_rules import match_partition_rules as match_partition_rules
    from cordwood.state_dict.handlers import (
        register_serialization_state as register_serialization_state,
    )
    from cordwood.state_dict.state_dicts import from_state_dict as from_state_dict
    from cordwood.state_dict.state_dicts import to_state_dict as to_state_dict
    from cordwood.storage.object_stores.storage_options import (
        storage_options as storage_options,
    )

_NAMES_OF = {
    "cordwood.api.apply_delta": "apply_delta",
    "cordwood.api.combine": "combine",
    "cordwood.api.convert": "convert",
    "cordwood.api.copy": "copy",
    "cordwood.api.delta": "delta",
    "cordwood.api.detect": "detect",
    "cordwood.api.diff": "diff",
    "cordwood.api.gc": "gc",
    "cordwood.api.load": "load",
    "cordwood.api.merge_lora": "merge_lora",
    "cordwood.api.open_checkpoint": "open",
    "cordwood.api.open_combined": "open_combined",
    "cordwood.api.save": "save",
    "cordwood.api.save_async": "save_async",
    "cordwood.api.verify": "verify",
    "cordwood.compat.eformer.serialization": "tree_deserialize_leaves tree_serialize_leaves",
    "cordwood.errors": "CordwoodError",
    "cordwood.io.memory.memory_for_next_load": "release_memory",
    "cordwood.keypath": "DictKey",
    "cordwood.loading.checkpoint": "Checkpoint",
    "cordwood.loading.stored_leaf": "StoredLeaf",
    "cordwood.manager.manager": "CheckpointManager",
    "cordwood.manager.mirror": "Mirror",
    "cordwood.manager.step_reader": "StepReader",
    "cordwood.msgpack": (
        "from_bytes load_from_file msgpack_restore msgpack_serialize save_to_file to_bytes"
    ),
    "cordwood.policies.keep_policies": "KeepBest KeepEvery KeepLast",
    "cordwood.policies.save_policies": "EverySeconds EverySteps",
    "cordwood.publishing.follower": "WeightFollower",
    "cordwood.publishing.publisher": "WeightPublisher",
    "cordwood.saving.background_saves": "PendingSave",
    "cordwood.sharding.partition_rules": "match_partition_rules",
    "cordwood.state_dict.state_dicts": "from_state_dict to_state_dict",
    "cordwood.state_dict.handlers": "register_serialization_state",
    "cordwood.storage.object_stores.storage_options": "storage_options",
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
_SUBMODULES = (
    "compat",
    "errors",
    "keypath",
    "msgpack",
    "policies",
    "recipes",
    "results",
    "state_dict",
    "testing",
)
# Names that the first preview had in `cordwood`: importable from here until version 0.2.
_MOVED_NAMES_OF = {
    "cordwood.compat.eformer.serialization": "is_array_like join_key leaf_key_paths",
    "cordwood.errors": (
        "CorruptionError FormatError IncompleteCheckpointError LimitError LossError "
        "MismatchError NotACheckpointError PendingSaveError PrefixError ProcessError "
        "StepError StorageError TruncatedError UnsupportedFormatError "
        "UnsupportedLeafError"
    ),
    "cordwood.keypath": "format_path parse_path",
    "cordwood.msgpack": (
        "compress_bytes decompress_bytes from_compressed_bytes get_serialization_info "
        "to_buffers to_compressed_bytes validate_serializable"
    ),
    "cordwood.policies": (
        "AtSteps EveryStep KeepAll KeepAt KeepPolicy KeepWithin Moment OnPreemption "
        "SavePolicy SavedStep WhenIdle"
    ),
    "cordwood.results": (
        "Conversion Detected Diff LeafDiff PlannedStep Progress Restored RetentionPlan "
        "SaveReport Stateful Verification"
    ),
    "cordwood.state_dict": "current_path is_serializable",
}
_MOVED = {module: names.split() for module, names in _MOVED_NAMES_OF.items()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_in_thread(f"cordwood.{name}")
    if name in _MODULE_OF:
        value = getattr(import_in_thread(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    for module, names in _MOVED.items():
        if name in names:
            warnings.warn(
                f"cordwood.{name} is now {module}.{name}; the old name goes away in version 0.2",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'cordwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    private = {name for name in globals() if name.startswith("_")}
    return sorted({*private, *_MODULE_OF, *_SUBMODULES})
