"""The leaves that a rule makes of those that it takes: paths, shapes, and parts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

from cordwood import dtypes
from cordwood.index import ARRAY_KINDS, Arithmetic, Arranged, ArrangedPart, Box, Leaf, leaf_text
from cordwood.keypath import format_path
from cordwood.recipes.match_rules import DirectedRule, Taken
from cordwood.recipes.parse_axes import AxisNames
from cordwood.recipes.rule import LIST
from cordwood.recipes.size_expressions import Number, evaluate
from cordwood.recipes.solve_axis_sizes import solve_axis_sizes

T = TypeVar("T")

MAX_MADE = 1 << 20  # leaves that one rule makes

MAX_PADDING = 1 << 16  # elements along an axis, unless it has more

_MAX_GROWTH = 4  # of an array that is padded along several axes, beside that along one

_SHOWN = 3
_MOMENTS = ("mu", "nu")


class RuleError(ValueError):
    """A rule does not fit the leaves that it takes."""


class UnknownSizesError(RuleError):
    """The sizes of axes do not follow from the shapes."""


def missing_names(missing: Sequence[T], name_of: Callable[[T], str]) -> str:
    """Return the first names of what is missing, as the beginning of a sentence."""
    names = ", ".join(map(name_of, missing[:_SHOWN]))
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return f"{names}{more} {'are' if len(missing) > 1 else 'is'} missing"


class Made(NamedTuple):
    """A leaf that a rule makes."""

    root: str
    name: str  # below the root, as the template of the rule gives it
    leaf: Leaf  # its key path is that of the first source
    first: int  # the number of its first source


class SizesOfLeaves(NamedTuple):
    """Sizes that the shapes of the leaves of a rule do not tell."""

    sizes: Mapping[str, int] = {}
    padded: Mapping[str, int] = {}  # with their padding
    parts: Mapping[str, Sequence[int]] = {}  # of axes along which arrays are joined, by position
    origin: str = ""  # in words: the leaf of `like` that has them


NO_SIZES = SizesOfLeaves()


class OtherSizes(NamedTuple):
    """Sizes for axes that the shapes of the leaves of a rule do not tell.

    Attributes:
        inferred: those that other rules have, by name.
        of_like: those of the leaves of `like`, by root and by what stands for `**`.
    """

    inferred: Mapping[str, int] = {}
    of_like: Mapping[tuple[str, str], SizesOfLeaves] = {}


@dataclass(frozen=True)
class ArithmeticOptions:
    """The attributes of a recipe that are about arithmetic."""

    store_dtype: str | None
    lossy: bool


class RuleArrangement:
    """A rule, the leaves that it takes, and the sizes of its axes.

    Args:
        rule: the rule.
        reverse: True if the sources are its paths.
        options: for rules with arithmetic.

    Attributes:
        free: the indices in the names of both sides.
        unstacked: the indices in the names of the target that are axes of the source.
    """

    def __init__(self, rule: DirectedRule, *, reverse: bool, options: ArithmeticOptions) -> None:
        self._rule = rule
        self._reverse = reverse
        self._options = options
        source, target = rule.source, rule.target
        source_names = frozenset().union(*[each.names for each in source.templates])
        target_names = frozenset().union(*[each.names for each in target.templates])
        self._stacked = sorted(rule.variables & source_names & {*target.axes.atoms})
        self.unstacked = sorted(rule.variables & target_names & {*source.axes.atoms})
        self.free = tuple(sorted(rule.variables & source_names & target_names))
        self._joins = bool(rule.rule.cat) and len(source.templates) > 1
        self._cuts = bool(rule.rule.cat) and len(target.templates) > 1
        both = {*source.axes.atoms, *target.axes.atoms}
        self._is_parallel = len(source.templates) > 1 and not rule.rule.cat and LIST not in both

    def make(
        self,
        taken: Sequence[Taken],
        leaves: Sequence[Leaf],
        lengths: Mapping[tuple[str, str], int],
        others: OtherSizes,
    ) -> Iterator[Made]:
        """Yield the leaves that the rule makes of those that it takes.

        Args:
            taken: what it takes.
            leaves: of the index.
            lengths: of stacked axes by root and index, as far as the whole tree tells.
            others: sizes for axes that are not known otherwise.

        Raises:
            UnknownSizesError: sizes of axes are missing.
            RuleError: the shapes of leaves do not fit, or some leaves are missing.
        """
        # Leaves of any axes may differ in their axes for each index that runs on both sides.
        apart = self.free if self._rule.source.axes.has_any else []
        groups: dict[tuple[str, str, tuple[int, ...]], list[Taken]] = {}
        for each in taken:
            indices = tuple([each.match.variables[name] for name in apart])
            groups.setdefault((each.root, each.match.rest, indices), []).append(each)
        for (root, rest, _), group in groups.items():
            if self._rule.rule.has_arithmetic and root.rpartition("/")[2] in _MOMENTS:
                raise RuleError(
                    f"it scales or adds, which is for parameters, and not for the moments in {root}"
                )
            elsewhere = others.of_like.get((root, rest), NO_SIZES)
            elsewhere = elsewhere._replace(sizes={**elsewhere.sizes, **others.inferred})
            try:
                yield from self._make_group(root, rest, group, leaves, elsewhere, lengths)
            except UnknownSizesError:
                raise
            except RuleError as e:
                raise RuleError(f"{e}{elsewhere.origin}") from e

    def sizes(self, taken: Sequence[Taken], leaves: Sequence[Leaf]) -> dict[str, int]:
        """Return the sizes that the shapes of the leaves tell, as far as they do."""
        sizes: dict[str, int] = {}
        for each in taken:
            sizes |= self.solve(each, leaves[each.number])
        odd = {*self._rule.rule.cat, *(self._rule.rule.pad if self._reverse else ()), LIST}
        return {name: size for name, size in sizes.items() if name not in odd and "." not in name}

    def solve(self, taken: Taken, leaf: Leaf) -> dict[str, int]:
        """Return the sizes that the shape of one leaf tells, as far as it does.

        Raises ValueError if the shape contradicts the sizes of the rule.
        """
        axes, rank = self._rule.source.axes, len(leaf.shape)
        if leaf.kind not in ARRAY_KINDS or not axes.fits(rank):
            return {}
        return solve_axis_sizes(
            axes.expanded(rank).groups, leaf.shape, self._known(taken, NO_SIZES)
        )

    def _known(self, taken: Taken, elsewhere: SizesOfLeaves) -> dict[str, int]:
        """Return the sizes of axes of one source leaf that are known before its shape is."""
        rule = self._rule
        sizes = {**elsewhere.sizes, **_integers(rule.sizes)}
        for name in rule.rule.pad if self._reverse else ():
            sizes.pop(name, None)
            padded = self._padded_size(name, elsewhere)
            if padded is not None:
                sizes[name] = padded
        for name in rule.rule.cat:
            parts = self._parts_of(name, sizes, elsewhere)
            sizes.pop(name, None)
            if parts is not None:
                sizes[name] = parts[taken.match.position] if self._joins else sum(parts)
        if LIST in rule.source.axes.atoms:
            sizes[LIST] = len(rule.target.templates)
        return sizes

    def _parts_of(
        self, name: str, sizes: Mapping[str, Number], elsewhere: SizesOfLeaves
    ) -> Sequence[int] | None:
        """Return the sizes of the parts that are joined along an axis; None if they are unknown."""
        try:
            values = {**self._rule.sizes, **sizes}
            return [_integer(size, values) for size in self._rule.rule.cat[name]]
        except UnknownSizesError:
            return elsewhere.parts.get(name)

    def _padded_size(self, name: str, elsewhere: SizesOfLeaves) -> int | None:
        """Return the size of an axis at the path, with its padding; None if it is unknown."""
        try:
            return _integer(self._rule.rule.pad[name], self._rule.sizes)
        except UnknownSizesError:
            return elsewhere.padded.get(name)

    def _make_group(
        self,
        root: str,
        rest: str,
        group: Sequence[Taken],
        leaves: Sequence[Leaf],
        elsewhere: SizesOfLeaves,
        lengths: Mapping[tuple[str, str], int],
    ) -> Iterator[Made]:
        rule = self._rule
        first = leaves[group[0].number]
        rank = len(first.shape)
        if not rule.source.axes.fits(rank):
            raise RuleError(
                f"expected {len(rule.source.axes.groups)} axes, found the shape {list(first.shape)}"
            )
        source = rule.source.axes.expanded(rank)
        target = rule.target.axes.with_any(rank - len(rule.source.axes.groups) + 1)
        sizes: dict[str, int] = {}
        parts: dict[str, dict[int, int]] = {name: {} for name in rule.rule.cat}
        for each in group:
            solved = self._solved(each, leaves[each.number], source, elsewhere)
            for name, size in solved.items():
                if name in parts and self._joins:
                    parts[name][each.match.position] = size
                elif sizes.setdefault(name, size) != size:
                    raise RuleError(
                        f"expected {sizes[name]} for {name}, as in other arrays, found {size}"
                    )
        for name in self._stacked:
            top = max(each.match.variables[name] for each in group) + 1
            sizes[name] = int(rule.sizes.get(name, lengths.get((root, name), top)))
        if LIST in target.atoms:
            sizes[LIST] = len(rule.source.templates)
        for name in rule.rule.cat:
            if self._joins:
                missing = set(range(len(rule.source.templates))) - parts[name].keys()
                if missing:
                    raise RuleError(self._missing([((), n) for n in missing], group))
            else:
                known = self._parts_of(name, {**elsewhere.sizes, **sizes}, elsewhere)
                if known is None:
                    raise UnknownSizesError(f"the sizes of the parts along {name} are not known")
                if self._cuts and sum(known) != sizes[name]:
                    shown = " + ".join(map(str, known))
                    raise RuleError(
                        f"cat: expected {shown} = {sum(known)} for {name}, found {sizes[name]}"
                    )
                parts[name] = dict(enumerate(known))
        padded_sizes: dict[str, int] = {}
        for name, pad in rule.rule.pad.items():
            natural: Number | None = sizes[name]
            padded = self._padded_size(name, elsewhere)
            if self._reverse:  # the shape of the source tells its size with padding
                natural, padded = rule.sizes.get(name, elsewhere.sizes.get(name)), sizes[name]
            if padded is None:
                raise UnknownSizesError(f"pad: the size {pad!r} of {name} is not known")
            if natural is None:
                raise UnknownSizesError(f"the size of {name} without its padding is not known")
            if padded < natural:
                raise RuleError(f"pad: {name} has {natural} elements, more than {padded}")
            if padded > max(2 * natural, natural + MAX_PADDING):
                raise RuleError(
                    f"pad: {padded} for {name}, which has {natural} elements: expected at most "
                    f"{MAX_PADDING} more, or twice as many"
                )
            sizes[name], padded_sizes[name] = int(natural), padded
        growths = [size / max(sizes[name], 1) for name, size in padded_sizes.items()]
        if math.prod(growths) > _MAX_GROWTH * max(growths, default=1):
            raise RuleError(
                f"pad: all axes together make the array {math.prod(growths):.0f} times as large: "
                f"expected at most {_MAX_GROWTH} times what one of them does"
            )
        yield from self._make_leaves(
            root, rest, group, leaves, _Solved(source, target, sizes, parts, padded_sizes)
        )

    def _solved(
        self, taken: Taken, leaf: Leaf, axes: AxisNames, elsewhere: SizesOfLeaves
    ) -> dict[str, int]:
        """Return the sizes of all axes of a leaf."""
        if leaf.kind not in ARRAY_KINDS:
            if axes.atoms or self._stacked:
                raise RuleError(f"expected an array, found a value of kind {leaf.kind}")
            return {}
        if len(axes.groups) != len(leaf.shape):
            raise RuleError(f"expected {len(axes.groups)} axes, found the shape {list(leaf.shape)}")
        try:
            solved = solve_axis_sizes(axes.groups, leaf.shape, self._known(taken, NO_SIZES))
            if not {*axes.atoms} <= solved.keys():
                known = self._known(taken, elsewhere)
                solved = solve_axis_sizes(axes.groups, leaf.shape, known)
        except ValueError as e:
            raise RuleError(f"the shape {list(leaf.shape)} does not fit: {e}") from e
        missing = [atom for atom in axes.atoms if atom not in solved]
        if missing:
            raise UnknownSizesError(
                f"the sizes of {', '.join(missing)} do not follow from the shape "
                f"{list(leaf.shape)}: give them in sizes, by with_config, or by shapes of like"
            )
        return solved

    def _make_leaves(
        self, root: str, rest: str, group: Sequence[Taken], leaves: Sequence[Leaf], solved: _Solved
    ) -> Iterator[Made]:
        """Yield a leaf for each index that runs on both sides, each index of the target only."""
        rule = self._rule
        by_free: dict[tuple[int, ...], list[Taken]] = {}
        for each in group:
            key = tuple([each.match.variables[name] for name in self.free])
            by_free.setdefault(key, []).append(each)
        ranges = [range(solved.sizes[name]) for name in self.unstacked]
        count = len(by_free) * math.prod(map(len, ranges)) * len(rule.target.templates)
        if count > MAX_MADE:
            raise RuleError(f"it makes {count} leaves: expected at most {MAX_MADE}")
        for free, some in by_free.items():
            for position, template in enumerate(rule.target.templates):
                sources = [
                    each
                    for each in some
                    if not self._is_parallel or each.match.position == position
                ]
                if not sources:
                    continue
                self._require_all(sources, solved)
                for indices in product(*ranges):
                    unstacked = dict(zip(self.unstacked, indices, strict=True))
                    values = {**rule.sizes, **dict(zip(self.free, free, strict=True)), **unstacked}
                    name = template.render(values, rest)
                    yield self._made(root, name, sources, leaves, solved, unstacked, position)

    def _require_all(self, sources: Sequence[Taken], solved: _Solved) -> None:
        """Raise RuleError unless there is a source for each index and position, and one only."""
        positions = 1 if self._is_parallel else len(self._rule.source.templates)
        if not (self._stacked or positions > 1 or len(sources) > 1):
            return
        counts: dict[tuple[tuple[int, ...], int], int] = {}
        for each in sources:
            indices = tuple([each.match.variables[name] for name in self._stacked])
            key = indices, 0 if self._is_parallel else each.match.position
            counts[key] = counts.get(key, 0) + 1
        ranges = [range(solved.sizes[name]) for name in self._stacked]
        if math.prod(map(len, ranges)) * positions > MAX_MADE:
            raise RuleError(f"an index is too large: expected at most {MAX_MADE} names in all")
        expected = set(product(product(*ranges), range(positions)))
        missing = sorted(expected - counts.keys())
        if missing:
            raise RuleError(self._missing(missing, sources))
        if max(counts.values()) > 1:
            raise RuleError("two leaves have the same name for it")

    def _missing(
        self, missing: Sequence[tuple[tuple[int, ...], int]], sources: Sequence[Taken]
    ) -> str:
        """Return a sentence on missing leaves, by their indices and positions."""
        match = sources[0].match

        def name_of(each: tuple[tuple[int, ...], int]) -> str:
            indices, position = each
            stacked = dict(zip(self._stacked, indices, strict=False))
            values = {**self._rule.sizes, **match.variables, **stacked}
            return self._rule.source.templates[position].render(values, match.rest)

        return missing_names(missing, name_of)

    def _made(
        self,
        root: str,
        name: str,
        sources: Sequence[Taken],
        leaves: Sequence[Leaf],
        solved: _Solved,
        unstacked: Mapping[str, int],
        position: int,
    ) -> Made:
        first = leaves[sources[0].number]
        numbers = [each.number for each in sources]
        if first.kind not in ARRAY_KINDS:
            return Made(root, name, first, numbers[0])
        padded = {} if self._reverse else solved.padded
        atoms = solved.target.atoms
        sizes = {**solved.sizes, **padded}
        for axis, parts in solved.parts.items():
            sizes[axis] = parts[position] if self._cuts else sum(parts.values())
        dtype_names = {leaves[number].dtype for number in numbers}
        if len(dtype_names) > 1:
            raise RuleError(f"{name} would have several dtypes: {', '.join(sorted(dtype_names))}")
        fixed = {**unstacked, LIST: position}
        made = [self._part(each, leaves[each.number], solved, fixed, position) for each in sources]
        padding = [
            Box(
                tuple([solved.sizes[atom] if atom == axis else 0 for atom in atoms]),
                tuple([sizes[atom] for atom in atoms]),
            )
            for axis in padded
            if padded[axis] > solved.sizes[axis]
        ]
        split = tuple([sizes[atom] for atom in atoms])
        arithmetic = self._arithmetic(solved.sizes, first.dtype)
        shape = solved.target.shape(sizes)
        dropped = [
            each
            for number in numbers
            if self._reverse and not self._options.lossy
            for each in self._dropped(leaves[number], solved, unstacked)
        ]
        storage = Arranged(split, tuple(made), tuple(padding), arithmetic, dropped=tuple(dropped))
        if shape == first.shape and _is_whole(storage):
            return Made(root, name, first, numbers[0])
        for number in numbers:
            _require_plain(leaves[number])
        if first.kind == "prng_key" or not first.dtype:
            raise RuleError(f"a leaf of kind {first.kind} can only be renamed")
        dtype = first.dtype
        if arithmetic is not None and self._options.store_dtype is not None:
            dtype = dtypes.parse(self._options.store_dtype)
        kind = "numpy" if first.kind == "numpy_scalar" and shape else first.kind
        leaf = Leaf(first.key_path, kind, shape, dtype, storage)
        return Made(root, name, leaf, min(numbers))

    def _part(
        self, taken: Taken, leaf: Leaf, solved: _Solved, fixed: Mapping[str, int], position: int
    ) -> ArrangedPart:
        source, target = solved.source.atoms, solved.target.atoms
        sizes = {**solved.sizes, **(solved.padded if self._reverse else {})}
        if LIST in source:
            sizes[LIST] = len(self._rule.target.templates)
        ends = {atom: (0, solved.sizes.get(atom, 1)) for atom in target}
        begin = dict.fromkeys(source, 0)
        for name, parts in solved.parts.items():
            at = position if self._cuts else taken.match.position
            offset = sum([parts[i] for i in range(at)])
            if self._cuts:
                sizes[name] = sum(parts.values())
                begin[name] = offset
                ends[name] = 0, parts[at]
            else:
                sizes[name] = parts[at]
                ends[name] = offset, offset + parts[at]
        for name in self._stacked:
            at = taken.match.variables[name]
            ends[name] = at, at + 1
        if LIST in target:
            ends[LIST] = taken.match.position, taken.match.position + 1
        axes = []
        for atom in source:
            if atom in fixed and atom not in target:
                begin[atom] = fixed[atom]
                axes.append(-1)
            else:
                axes.append(target.index(atom))
        return ArrangedPart(
            leaf,
            tuple([sizes[atom] for atom in source]),
            tuple([begin[atom] for atom in source]),
            tuple(axes),
            Box(
                tuple([ends[atom][0] for atom in target]), tuple([ends[atom][1] for atom in target])
            ),
        )

    def _dropped(
        self, leaf: Leaf, solved: _Solved, unstacked: Mapping[str, int]
    ) -> Iterator[Arranged]:
        """Yield the padding of a leaf that is left out, for each axis that has some."""
        atoms = solved.source.atoms
        sizes = {**solved.sizes, **solved.padded, LIST: len(self._rule.target.templates)}
        sizes |= {name: sum(parts.values()) for name, parts in solved.parts.items()}
        for padded, size in solved.padded.items():
            if size == solved.sizes[padded]:
                continue
            starts = {**unstacked, padded: solved.sizes[padded]}
            start = tuple([starts.get(atom, 0) for atom in atoms])
            stop = [unstacked[atom] + 1 if atom in unstacked else sizes[atom] for atom in atoms]
            shape = tuple([last - first for first, last in zip(start, stop, strict=True)])
            axes = tuple(range(len(atoms)))
            whole = Box((0,) * len(atoms), shape)
            split = tuple([sizes[atom] for atom in atoms])
            yield Arranged(shape, (ArrangedPart(leaf, split, start, axes, whole),))

    def _arithmetic(self, sizes: Mapping[str, int], dtype: str) -> Arithmetic | None:
        rule = self._rule.rule
        if not rule.has_arithmetic:
            return None
        if not dtypes.is_floating(dtype):
            raise RuleError(f"it scales or adds, which is for floating arrays, found {dtype}")
        values = {**self._rule.sizes, **sizes}
        try:
            scale = float(evaluate(1 if rule.scale is None else rule.scale, values))
            add = float(evaluate(0 if rule.add is None else rule.add, values))
        except KeyError as e:
            raise UnknownSizesError(f"the size {e} of scale or add is not known") from e
        except ValueError as e:
            raise RuleError(f"scale or add: {e}") from e
        if not scale:
            raise RuleError("scale is 0, which has no inverse")
        return Arithmetic(scale, add, self._reverse, self._options.lossy)


class _Solved(NamedTuple):
    """The axes of both sides of a rule, and their sizes."""

    source: AxisNames
    target: AxisNames
    sizes: Mapping[str, int]  # without padding
    parts: Mapping[str, Mapping[int, int]]  # of axes along which arrays are joined, by position
    padded: Mapping[str, int]  # sizes of axes with their padding


def _require_plain(leaf: Leaf) -> None:
    """Raise RuleError for a leaf of another recipe that has more than elements of the file."""
    storage = leaf.storage
    if not isinstance(storage, Arranged):
        return
    reasons = {
        "scales or adds": storage.arithmetic is not None,
        "pads": bool(storage.padding),
        "leaves padding out": bool(storage.dropped),
        "compares with another array": bool(storage.copies),
    }
    what = [reason for reason, holds in reasons.items() if holds]
    if what:
        raise RuleError(
            f"it rearranges {leaf_text(leaf)}, which another recipe makes of "
            f"{format_path(storage.parts[0].leaf.key_path)} and {what[0]}: convert by that recipe "
            "first, and apply this one to the result"
        )


def _is_whole(arranged: Arranged) -> bool:
    """Return True if it is one leaf, with its axes in order."""
    if len(arranged.parts) != 1 or arranged.padding or arranged.arithmetic is not None:
        return False
    (part,) = arranged.parts
    long = [axis for axis, size in zip(part.axes, part.shape, strict=True) if size != 1]
    return (
        part.box.stop == arranged.shape
        and not any(part.start)
        and long == sorted(long)
        and (-1 not in long)
        and math.prod(part.shape) == math.prod(arranged.shape)
    )


def _integers(sizes: Mapping[str, Number]) -> dict[str, int]:
    return {name: int(size) for name, size in sizes.items() if size == int(size) and size >= 0}


def _integer(size: int | str, values: Mapping[str, Number]) -> int:
    try:
        value = evaluate(size, values)
    except KeyError as e:
        raise UnknownSizesError(f"the size {e} is not known: give it in sizes") from e
    except ValueError as e:
        raise RuleError(str(e)) from e
    if value != int(value) or value < 0:
        raise RuleError(f"{size} is {value}: expected a whole number")
    return int(value)
