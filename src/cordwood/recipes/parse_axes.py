"""The axes of one side of a rule: names of parts of axes, such as `(n t k) d`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|(\.\.\.)|([()1]))")
MAX_AXES = 32  # names in the axes of one side

ANY = "..."  # any number of further axes


class AxisNames(NamedTuple):
    """The axes of an array, the outermost first; each is made of atoms that have names.

    The elements are in C order of all atoms.
    """

    groups: tuple[tuple[str, ...], ...]

    @property
    def atoms(self) -> tuple[str, ...]:
        """The names of all atoms in order; axes of size 1 have none."""
        return tuple([atom for group in self.groups for atom in group])

    @property
    def has_any(self) -> bool:
        """True if any number of further axes stand somewhere."""
        return (ANY,) in self.groups

    def fits(self, rank: int) -> bool:
        """Return True if an array of that number of axes can have these."""
        count = len(self.groups)
        return rank >= count - 1 if self.has_any else rank == count

    def expanded(self, rank: int) -> AxisNames:
        """Return the axes with names for each axis of `...`, of an array of that many axes."""
        if not self.has_any:
            return self
        return self.with_any(rank - len(self.groups) + 1)

    def with_any(self, count: int) -> AxisNames:
        """Return the axes with `count` named axes for `...`."""
        groups: list[tuple[str, ...]] = []
        for group in self.groups:
            groups += [(f"...{i}",) for i in range(count)] if group == (ANY,) else [group]
        return AxisNames(tuple(groups))

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of an array whose atoms have these sizes."""
        shape = []
        for group in self.groups:
            size = 1
            for atom in group:
                size *= sizes[atom]
            shape.append(size)
        return tuple(shape)


def parse_axes(text: str) -> AxisNames:
    """Return the axes that a text lists, separated by spaces.

    Raises ValueError for other text, and if an atom stands in it twice.

    >>> parse_axes("(n h) d").groups
    (('n', 'h'), ('d',))
    """
    groups: list[tuple[str, ...]] = []
    group: list[str] | None = None
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"axes {text!r:.80}: {text[at : at + 10]!r} is no name of an axis")
        name, any_axes, sign = token.groups()
        at = token.end()
        if sign == "(" and group is None:
            group = []
        elif sign == ")" and group is not None:
            groups.append(tuple(group))
            group = None
        elif group is not None and name:
            group.append(name)
        elif group is None and (name or any_axes or sign == "1"):
            groups.append((name or any_axes,) if sign != "1" else ())
        else:
            raise ValueError(f"axes {text!r:.80}: {token[0].strip()!r} cannot stand there")
    if group is not None:
        raise ValueError(f"axes {text!r:.80}: a parenthesis is not closed")
    axes = AxisNames(tuple(groups))
    if len(set(axes.atoms)) < len(axes.atoms):
        raise ValueError(f"axes {text!r:.80}: a name stands there twice")
    if len(axes.groups) > MAX_AXES or len(axes.atoms) > MAX_AXES:
        raise ValueError(f"axes {text!r:.80}: expected at most {MAX_AXES}")
    return axes
