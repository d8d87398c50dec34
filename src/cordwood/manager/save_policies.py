"""When to save: small values that are joined by `|` and `&`, and say why.

Pure: what a policy says depends on the moment that it is shown, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat, TypeAlias

from cordwood.field_docs import document_fields
from cordwood.manager.step_names import policy_count, policy_steps


@document_fields
class Moment(NamedTuple):
    """The state of a run when a policy is asked whether to save.

    Attributes:
        step: the step that might be saved.
        last_step: the newest that is saved, or being saved; None where there is none.
        seconds_since_last: since that save began; where there was none, since the start.
        saving: True while a save goes on.
        preempted: True once this job has been told to end.
    """

    step: int
    last_step: int | None
    seconds_since_last: float
    saving: bool
    preempted: bool


class SavePolicy:
    """When to save. `a | b` saves when one of the two does, `a & b` when both do."""

    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        """Why to save now; None: do not."""
        raise NotImplementedError

    @property
    def by_step(self) -> bool:
        """Whether only the steps decide, so that all processes come to the same on their own."""
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
    """Save every `count` steps: at the multiples, or as soon as one has been passed unsaved."""

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
    """Save when the last save began so many seconds ago (or, before the first, the job)."""

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
    """Save when no save goes on: `EverySteps(10) & WhenIdle()` never waits for the one before."""

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


def as_save_policy(given: SaveWhen) -> SavePolicy:
    """The policy that is meant: a number is every so many steps, None every step."""
    if given is None:
        return EveryStep()
    if isinstance(given, SavePolicy):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return EverySteps(given)
    raise TypeError(
        f"save: expected a number of steps or a policy such as EverySteps(100), found {given!r}"
    )


def asks_for_notice(policy: SavePolicy) -> bool:
    """Whether an `OnPreemption` is in it."""
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
