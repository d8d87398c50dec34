"""Policies of `CheckpointManager`: when to save, and which steps to keep.

Policies are small values that are joined by `|` and `&`. They are pure: the result depends on the
arguments only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.public_names import lazy_names

if TYPE_CHECKING:
    from cordwood.policies.keep_policies import KeepAll as KeepAll
    from cordwood.policies.keep_policies import KeepAt as KeepAt
    from cordwood.policies.keep_policies import KeepBest as KeepBest
    from cordwood.policies.keep_policies import KeepEvery as KeepEvery
    from cordwood.policies.keep_policies import KeepLast as KeepLast
    from cordwood.policies.keep_policies import KeepPolicy as KeepPolicy
    from cordwood.policies.keep_policies import KeepWithin as KeepWithin
    from cordwood.policies.save_policies import AtSteps as AtSteps
    from cordwood.policies.save_policies import EverySeconds as EverySeconds
    from cordwood.policies.save_policies import EveryStep as EveryStep
    from cordwood.policies.save_policies import EverySteps as EverySteps
    from cordwood.policies.save_policies import Moment as Moment
    from cordwood.policies.save_policies import OnPreemption as OnPreemption
    from cordwood.policies.save_policies import SavePolicy as SavePolicy
    from cordwood.policies.save_policies import WhenIdle as WhenIdle
    from cordwood.policies.saved_step import SavedStep as SavedStep

_MODULE_OF = {
    "AtSteps": "cordwood.policies.save_policies",
    "EverySeconds": "cordwood.policies.save_policies",
    "EveryStep": "cordwood.policies.save_policies",
    "EverySteps": "cordwood.policies.save_policies",
    "KeepAll": "cordwood.policies.keep_policies",
    "KeepAt": "cordwood.policies.keep_policies",
    "KeepBest": "cordwood.policies.keep_policies",
    "KeepEvery": "cordwood.policies.keep_policies",
    "KeepLast": "cordwood.policies.keep_policies",
    "KeepPolicy": "cordwood.policies.keep_policies",
    "KeepWithin": "cordwood.policies.keep_policies",
    "Moment": "cordwood.policies.save_policies",
    "OnPreemption": "cordwood.policies.save_policies",
    "SavePolicy": "cordwood.policies.save_policies",
    "SavedStep": "cordwood.policies.saved_step",
    "WhenIdle": "cordwood.policies.save_policies",
}

__all__ = sorted(_MODULE_OF)

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
