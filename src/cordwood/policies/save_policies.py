"""Save policies: when `CheckpointManager` saves.

They are small values, and pure: the result depends on the arguments only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    NamedTuple,
    TypeAlias,
)

from cordwood.policies.joined_policies import Joined, join_policies, parts_of
from cordwood.policies.policy_arguments import Count, Seconds, StepNumbers
from cordwood.public_names import document_fields


@document_fields
class Moment(NamedTuple):
    """The state of a run when a policy is asked whether to save.

    Attributes:
        step: the step that might be saved.
        last_step: the newest step that is saved, or being saved; None if there is none.
        seconds_since_last: the time since that save began, or since the start if there was none.
        saving: True while a save is running.
        preempted: True once this job has received SIGTERM.
    """

    step: int
    last_step: int | None
    seconds_since_last: float
    saving: bool
    preempted: bool


class SavePolicy:
    """A rule that says when to save.

    `a | b` saves when one of the two does, `a & b` when both do.
    """

    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        """Return the reason to save now; None to save nothing."""
        raise NotImplementedError

    @property
    def by_step(self) -> bool:
        """True if only step numbers decide, so that all processes decide alike by themselves."""
        return True

    def __or__(self, other: SavePolicy) -> SavePolicy:
        is_kind = isinstance(other, SavePolicy)
        return join_policies(_JoinedSave, "|", self, other) if is_kind else NotImplemented

    def __and__(self, other: SavePolicy) -> SavePolicy:
        is_kind = isinstance(other, SavePolicy)
        return join_policies(_JoinedSave, "&", self, other) if is_kind else NotImplemented


class _MomentPolicy(SavePolicy):
    """A rule whose answer depends on the moment, so that processes may not decide alike."""

    __slots__ = ()

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class EveryStep(SavePolicy):
    """Save whenever `save` is called."""

    def why(self, moment: Moment) -> str | None:
        return f"every step is saved, {moment.step} too"


@dataclass(frozen=True, slots=True)
class EverySteps(Count, SavePolicy):
    """Save at the multiples of `count`, or at the next step if a multiple was not saved."""

    def why(self, moment: Moment) -> str | None:
        multiple = moment.step - moment.step % self.count
        if multiple == moment.step:
            return f"{moment.step} is a multiple of {self.count}"
        if multiple > (moment.last_step or 0):
            return f"{multiple}, a multiple of {self.count}, was not saved"
        return None


@dataclass(frozen=True, slots=True)
class EverySeconds(Seconds, _MomentPolicy):
    """Save when the last save, or else the job, began at least `seconds` seconds ago."""

    def why(self, moment: Moment) -> str | None:
        if moment.seconds_since_last < self.seconds:
            return None
        return f"{moment.seconds_since_last:.0f} s have gone by (every {self.seconds:g} s)"


class AtSteps(StepNumbers, SavePolicy):
    """Save at these steps."""

    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        return f"{moment.step} was asked for" if moment.step in self.steps else None


@dataclass(frozen=True, slots=True)
class WhenIdle(_MomentPolicy):
    """Save when no save is running: `EverySteps(10) & WhenIdle()` never waits for a save."""

    def why(self, moment: Moment) -> str | None:
        return None if moment.saving else "no save goes on"


@dataclass(frozen=True, slots=True)
class OnPreemption(_MomentPolicy):
    """Save when the job has received SIGTERM."""

    def why(self, moment: Moment) -> str | None:
        return "the job has been told to end" if moment.preempted else None


class _JoinedSave(Joined, SavePolicy):
    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        return self.reason(part.why(moment) for part in self.parts)

    @property
    def by_step(self) -> bool:
        return all(part.by_step for part in self.parts)


SaveWhen: TypeAlias = SavePolicy | int | None


def as_save_policy(save: SaveWhen, argument: str = "save") -> SavePolicy:
    """Return a policy for an argument: a number is an interval, None is every step."""
    if save is None:
        return EveryStep()
    if isinstance(save, SavePolicy):
        return save
    if isinstance(save, int) and not isinstance(save, bool):
        return EverySteps(save)
    raise TypeError(
        f"{argument}: expected a number of steps or a policy such as EverySteps(100), "
        f"found {save!r}"
    )


def asks_for_notice(policy: SavePolicy) -> bool:
    """Return True if a policy contains an `OnPreemption`."""
    return any(isinstance(part, OnPreemption) for part in parts_of(policy))
