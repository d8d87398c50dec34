"""Policies of `CheckpointManager`: when to save, and which steps to keep.

Policies are small values that are joined by `|` and `&`.
"""

from __future__ import annotations

from cordwood.manager.keep_policies import (
    KeepAll,
    KeepAt,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepPolicy,
    KeepWithin,
    SavedStep,
)
from cordwood.manager.save_policies import (
    AtSteps,
    EverySeconds,
    EveryStep,
    EverySteps,
    Moment,
    OnPreemption,
    SavePolicy,
    WhenIdle,
)

__all__ = [
    "AtSteps",
    "EverySeconds",
    "EveryStep",
    "EverySteps",
    "KeepAll",
    "KeepAt",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepPolicy",
    "KeepWithin",
    "Moment",
    "OnPreemption",
    "SavePolicy",
    "SavedStep",
    "WhenIdle",
]
