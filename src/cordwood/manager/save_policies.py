"""Policies that say when to save: small values that are joined by `|` and `&`.

They are pure: the result depends on the given moment only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat, TypeAlias

from cordwood.manager.step_names import policy_count, policy_steps
from cordwood.public_names import document_fields


@document_fields
class Moment(NamedTuple):
    """The state of a run when a policy is asked whether to save.

    Attributes:
        step: the step that might be saved.
        last_step: the newest step that is saved, or being saved; None if there is none.
        seconds_since_last: the time since that save began, or since the start if there was none.
        saving: True while a save is running.
        preempted: True once this job has been told to end.
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
        if not isinstance(other, SavePolicy):
            return NotImplemented
        return _AnyOf((*_parts(self, _AnyOf), *_parts(other, _AnyOf)))

    def __and__(self, other: SavePolicy) -> SavePolicy:
        if not isinstance(other, SavePolicy):
            return NotImplemented
        return _AllOf((*_parts(self, _AllOf), *_parts(other, _AllOf)))


@dataclass(frozen=True, slots=True)
class EveryStep(SavePolicy):
    """Save whenever `save` is called."""

    def why(self, moment: Moment) -> str | None:
        return f"every step is saved, {moment.step} too"


@dataclass(frozen=True, slots=True)
class EverySteps(SavePolicy):
    """Save at the multiples of `count`, or at the next step if a multiple was not saved."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", policy_count("EverySteps", self.count))

    def why(self, moment: Moment) -> str | None:
        multiple = moment.step - moment.step % self.count
        if multiple == moment.step:
            return f"{moment.step} is a multiple of {self.count}"
        if multiple > (moment.last_step or 0):
            return f"{multiple}, a multiple of {self.count}, was not saved"
        return None


@dataclass(frozen=True, slots=True)
class EverySeconds(SavePolicy):
    """Save when the last save, or else the job, began at least `seconds` seconds ago."""

    seconds: float

    def __post_init__(self) -> None:
        _require_positive("EverySeconds", "seconds", self.seconds)

    def why(self, moment: Moment) -> str | None:
        if moment.seconds_since_last < self.seconds:
            return None
        return f"{moment.seconds_since_last:.0f} s have gone by (every {self.seconds:g} s)"

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, init=False)
class AtSteps(SavePolicy):
    """Save at these steps."""

    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        object.__setattr__(self, "steps", policy_steps("AtSteps", steps))

    def why(self, moment: Moment) -> str | None:
        return f"{moment.step} was asked for" if moment.step in self.steps else None

    def __repr__(self) -> str:
        return f"AtSteps({sorted(self.steps)})"


@dataclass(frozen=True, slots=True)
class WhenIdle(SavePolicy):
    """Save when no save is running: `EverySteps(10) & WhenIdle()` never waits for a save."""

    def why(self, moment: Moment) -> str | None:
        return None if moment.saving else "no save goes on"

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OnPreemption(SavePolicy):
    """Save when the job has been told to end."""

    def why(self, moment: Moment) -> str | None:
        return "the job has been told to end" if moment.preempted else None

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _AnyOf(SavePolicy):
    parts: tuple[SavePolicy, ...]

    def why(self, moment: Moment) -> str | None:
        reasons = [reason for part in self.parts if (reason := part.why(moment)) is not None]
        return "; ".join(reasons) if reasons else None

    @property
    def by_step(self) -> bool:
        return all(part.by_step for part in self.parts)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


@dataclass(frozen=True, slots=True)
class _AllOf(SavePolicy):
    parts: tuple[SavePolicy, ...]

    def why(self, moment: Moment) -> str | None:
        reasons = []
        for part in self.parts:
            reason = part.why(moment)
            if reason is None:
                return None
            reasons.append(reason)
        return " and ".join(reasons)

    @property
    def by_step(self) -> bool:
        return all(part.by_step for part in self.parts)

    def __repr__(self) -> str:
        return " & ".join(
            f"({part!r})" if isinstance(part, _AnyOf) else repr(part) for part in self.parts
        )


SaveWhen: TypeAlias = SavePolicy | int | None


def as_save_policy(save: SaveWhen) -> SavePolicy:
    """Return a policy for the argument `save`: a number is an interval, None is every step."""
    if save is None:
        return EveryStep()
    if isinstance(save, SavePolicy):
        return save
    if isinstance(save, int) and not isinstance(save, bool):
        return EverySteps(save)
    raise TypeError(
        f"save: expected a number of steps or a policy such as EverySteps(100), found {save!r}"
    )


def asks_for_notice(policy: SavePolicy) -> bool:
    """Return True if a policy contains an `OnPreemption`."""
    if isinstance(policy, _AnyOf | _AllOf):
        return any(map(asks_for_notice, policy.parts))
    return isinstance(policy, OnPreemption)


def _parts(policy: SavePolicy, kind: type[_AnyOf] | type[_AllOf]) -> tuple[SavePolicy, ...]:
    return policy.parts if isinstance(policy, kind) else (policy,)


def _require_positive(where: str, name: str, value: float) -> None:
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise TypeError(f"{where}: {name}: expected a number, found {value!r:.80}")
    if not float(value) > 0:
        raise ValueError(f"{where}: {name}: expected more than 0, found {value!r}")
