"""Policies of one kind that are joined by `|` or `&`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import (
    Any,
    Literal,
    TypeVar,
)

J = TypeVar("J", bound="Joined")


@dataclass(frozen=True, slots=True, repr=False)
class Joined:
    """Policies of one kind that are joined by one operator."""

    operator: Literal["|", "&"]
    parts: tuple[Any, ...]

    def reason(self, reasons: Iterable[str | None]) -> str | None:
        """Return the reason of the whole from those of the parts; None if there is none."""
        texts = []
        for reason in reasons:
            if reason is not None:
                texts.append(reason)
            elif self.operator == "&":
                return None  # and the parts after this one are not asked
        return ("; " if self.operator == "|" else " and ").join(texts) if texts else None

    def __repr__(self) -> str:
        return f" {self.operator} ".join(map(self._part_text, self.parts))

    def _part_text(self, part: Any) -> str:
        is_weaker = isinstance(part, Joined) and (part.operator, self.operator) == ("|", "&")
        return f"({part!r})" if is_weaker else repr(part)


def join_policies(kind: type[J], operator: Literal["|", "&"], *policies: Any) -> J:
    """Return policies joined; flatten operands joined by the same operator."""
    parts: list[Any] = []
    for policy in policies:
        is_same = isinstance(policy, kind) and policy.operator == operator
        parts += policy.parts if is_same else [policy]
    return kind(operator, tuple(parts))


def parts_of(policy: Any) -> Iterator[Any]:
    """Yield the policies that were joined, or the one that is not joined."""
    if isinstance(policy, Joined):
        for part in policy.parts:
            yield from parts_of(part)
    else:
        yield policy
