"""The calls of `orbax.checkpoint`: switch to cordwood by changing one import.

`import orbax.checkpoint as ocp` becomes `import cordwood.compat.orbax as ocp`. Steps are saved by
cordwood, and Orbax reads them. docs/how-to/orbax.md says what differs.
"""

from __future__ import annotations

from typing import Any

from cordwood.compat.orbax import (
    args,
    checkpoint_managers,
    checkpoint_utils,
    experimental,
    handlers,
    utils,
)
from cordwood.compat.orbax.checkpoint_manager import CheckpointManager, StepAlreadyExistsError
from cordwood.compat.orbax.checkpoint_manager_options import AsyncOptions, CheckpointManagerOptions
from cordwood.compat.orbax.checkpointers import (
    AsyncCheckpointer,
    Checkpointer,
    PyTreeCheckpointer,
    StandardCheckpointer,
)
from cordwood.compat.orbax.experimental import v1
from cordwood.compat.orbax.handlers import (
    ArrayCheckpointHandler,
    AsyncCheckpointHandler,
    CheckpointHandler,
    CompositeCheckpointHandler,
    JsonCheckpointHandler,
    PyTreeCheckpointHandler,
    StandardCheckpointHandler,
)
from cordwood.compat.orbax.restore_arguments import ArrayRestoreArgs, RestoreArgs, SaveArgs

__all__ = [
    "PLACEHOLDER",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "AsyncCheckpointHandler",
    "AsyncCheckpointer",
    "AsyncOptions",
    "CheckpointHandler",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "JsonCheckpointHandler",
    "PyTreeCheckpointHandler",
    "PyTreeCheckpointer",
    "RestoreArgs",
    "SaveArgs",
    "StandardCheckpointHandler",
    "StandardCheckpointer",
    "StepAlreadyExistsError",
    "args",
    "checkpoint_managers",
    "checkpoint_utils",
    "experimental",
    "handlers",
    "utils",
    "v1",
]

PLACEHOLDER = ...  # a leaf of a target that is not restored

# Names of Orbax that this module does not have, and what to do instead.
_OTHER_NAMES = {
    "CheckpointHandlerRegistry": "pass item_handlers={name: handler} to CheckpointManager",
    "DefaultCheckpointHandlerRegistry": "pass item_handlers={name: handler} to CheckpointManager",
    "JaxRandomKeyCheckpointHandler": "store the key as a leaf of a tree: cordwood keeps its type",
    "NumpyRandomKeyCheckpointHandler": "store generator.bit_generator.state by args.JsonSave",
    "Transform": "cordwood.load has rename=, transpose= and recipe= for other names and shapes",
    "RestoreTransform": "cordwood.load has rename=, transpose= and recipe=",
    "apply_transformations": "cordwood.load has rename=, transpose= and recipe=",
    "test_utils": "cordwood.testing compares trees",
    "type_handlers": "cordwood stores every array of numpy and JAX without them",
    "options": "AsyncOptions and CheckpointManagerOptions are in cordwood.compat.orbax itself",
}


def __getattr__(name: str) -> Any:
    hint = _OTHER_NAMES.get(name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(f"{message}: {hint}" if hint else message)
