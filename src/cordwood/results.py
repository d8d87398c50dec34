"""Types of the values that cordwood returns or passes to your functions, for annotations.

`Stateful` is the protocol of the objects that `CheckpointManager.save(items=...)` takes;
`Resplittable` of those that `restore` also sets if the number of processes has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.public_names import lazy_names

if TYPE_CHECKING:
    from cordwood.api.gc import GcReport as GcReport
    from cordwood.comparing.differences import Diff as Diff
    from cordwood.comparing.leaf_diff import LeafDiff as LeafDiff
    from cordwood.converting.conversion import Conversion as Conversion
    from cordwood.copying.copy_report import CopyReport as CopyReport
    from cordwood.deltas.delta_report import DeltaReport as DeltaReport
    from cordwood.io.progress import Progress as Progress
    from cordwood.loading.detect_checkpoint import Detected as Detected
    from cordwood.manager.items.resplit_states import Resplittable as Resplittable
    from cordwood.manager.items.stateful import Stateful as Stateful
    from cordwood.manager.manager_problem import ManagerProblem as ManagerProblem
    from cordwood.manager.restored import Restored as Restored
    from cordwood.manager.save_report import SaveReport as SaveReport
    from cordwood.plan.recovery.step_places import StepPlaces as StepPlaces
    from cordwood.policies.retention_plan import PlannedStep as PlannedStep
    from cordwood.policies.retention_plan import RetentionPlan as RetentionPlan
    from cordwood.recipes.recipe_table import RecipeTable as RecipeTable
    from cordwood.storage.object_stores.storage_options import StorageOptions as StorageOptions
    from cordwood.verifying.verify_result import Verification as Verification

_MODULE_OF = {
    "Conversion": "cordwood.converting.conversion",
    "CopyReport": "cordwood.copying.copy_report",
    "DeltaReport": "cordwood.deltas.delta_report",
    "Detected": "cordwood.loading.detect_checkpoint",
    "Diff": "cordwood.comparing.differences",
    "GcReport": "cordwood.api.gc",
    "LeafDiff": "cordwood.comparing.leaf_diff",
    "PlannedStep": "cordwood.policies.retention_plan",
    "ManagerProblem": "cordwood.manager.manager_problem",
    "Progress": "cordwood.io.progress",
    "RecipeTable": "cordwood.recipes.recipe_table",
    "Resplittable": "cordwood.manager.items.resplit_states",
    "Restored": "cordwood.manager.restored",
    "RetentionPlan": "cordwood.policies.retention_plan",
    "SaveReport": "cordwood.manager.save_report",
    "Stateful": "cordwood.manager.items.stateful",
    "StepPlaces": "cordwood.plan.recovery.step_places",
    "StorageOptions": "cordwood.storage.object_stores.storage_options",
    "Verification": "cordwood.verifying.verify_result",
}

__all__ = sorted(_MODULE_OF)

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
