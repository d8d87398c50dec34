"""A rule of a recipe: names and axes on one side, paths and axes on the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from cordwood.keypath import parse_path
from cordwood.message_text import shortened
from cordwood.recipes.field_types import require_field_types
from cordwood.recipes.parse_axes import ANY, AxisNames, parse_axes
from cordwood.recipes.size_expressions import expression_names, require_expression, whole_number
from cordwood.recipes.templates import NameTemplate, parse_template

LIST = "L"  # the axis of several names or paths

MAX_NAMES = 4096  # of one side of a rule

_SHOWN = 300  # characters of a rule in an error


@dataclass(frozen=True)
class Rule:
    """Names and axes on one side, key paths and axes on the other, of the same elements.

    Axes are names separated by spaces, the outermost first; `(n h)` is one axis made of two. Both
    sides have the same names of axes. Those that stand on one side only are an index in the names
    of the other (`{i}`: stacked layers, experts), or `L`, the number in the list of the other.

    Attributes:
        names: a template of names, or several. `{i}` is an index, `{2*i+1}` an expression of one,
            `**` any keys, the same on both sides. None: `paths` are ignored.
        axes: the axes of an array of that name; "..." for any axes, the same on both sides.
        paths: a template of key paths, or several. None: `names` are ignored.
        path_axes: the axes of an array at that path.
        sizes: sizes of axes of this rule, as expressions.
        pad: sizes of axes of the arrays at paths that are padded with zeros.
        cat: for an axis along which unequal arrays of a list are joined into one of the other
            side: the size of each of them, as expressions.
        scale, add: expressions; an element at a path is that of the name times `scale`, plus `add`.
        when: an expression of sizes; where it is 0, the recipe is without the rule.
        optional: True if the tree may lack all that the rule takes.
    """

    names: Sequence[str] | str | None
    axes: str = ANY
    paths: Sequence[str] | str | None = None
    path_axes: str = ANY
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    pad: Mapping[str, int | str] = field(default_factory=dict)
    cat: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    scale: str | float | None = None
    add: str | float | None = None
    when: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        require_field_types(self, "Rule")
        for name in ("names", "paths"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "cat", {name: tuple(some) for name, some in self.cat.items()})
        try:
            self._check()
        except ValueError as e:
            raise ValueError(f"recipe, rule {self.label}: {e}") from e

    @property
    def label(self) -> str:
        """The rule as a line for errors; the middle of a long one is left out."""
        return shortened(str(self), _SHOWN)

    @property
    def name_list(self) -> tuple[str, ...]:
        """The names; () if the rule ignores paths."""
        return _listed(self.names)

    @property
    def path_list(self) -> tuple[str, ...]:
        """The paths; () if the rule ignores names."""
        return _listed(self.paths)

    @property
    def has_arithmetic(self) -> bool:
        """True if elements are scaled, or something is added."""
        return self.scale is not None or self.add is not None

    @property
    def is_ignoring(self) -> bool:
        """True if the rule says what has no counterpart."""
        return not (self.name_list and self.path_list)

    @property
    def names_of_numbers(self) -> frozenset[str]:
        """The names of its axes and indices, and those in its expressions."""
        cat = [size for sizes in self.cat.values() for size in sizes]
        sizes = [*self.sizes.values(), *self.pad.values(), *cat, self.scale, self.add, self.when]
        names = [expression_names(size) for size in sizes if isinstance(size, str)]
        for templates, separator in (
            (self.name_list, separator_of(self.name_list)),
            (self.path_list, "/"),
        ):
            names += [parse_template(each, separator=separator).names for each in templates]
        atoms = {*parse_axes(self.axes).atoms, *parse_axes(self.path_axes).atoms}
        return frozenset(atoms).union(*names)

    @property
    def lone_indices(self) -> set[str]:
        """The names in braces of one side, without one that the other has or that has a size."""
        if self.is_ignoring:
            return set()
        separator = separator_of(self.name_list)
        names = parse_template(self.name_list[0], separator=separator)
        paths = parse_template(self.path_list[0], separator="/")
        lone: set[str] = set()
        for one, other, axes in ((names, paths, self.path_axes), (paths, names, self.axes)):
            used = {*other.names, *parse_axes(axes).atoms, *self.sizes}
            some = [expression_names(field) for field in one.fields]
            lone.update(*[each for each in some if not each & used])
        return lone

    def __str__(self) -> str:
        """Return the rule as a line: `a.{i}.w [d f] <-> a/w [i f d]`, and its options."""
        names, paths = " + ".join(self.name_list), " + ".join(self.path_list)
        if self.is_ignoring:
            return f"{names or paths} -> ignored" + self._options()
        return f"{names} [{self.axes}] <-> {paths} [{self.path_axes}]{self._options()}"

    def _options(self) -> str:
        defaults = {each.name: each for each in fields(self)}
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in ("sizes", "pad", "cat", "scale", "add", "when", "optional")
            if getattr(self, name) not in (defaults[name].default, {})
        ]
        return f"  {', '.join(shown)}" if shown else ""

    def _check(self) -> None:
        name_axes, path_axes = parse_axes(self.axes), parse_axes(self.path_axes)
        separator = separator_of(self.name_list)
        names = [parse_template(each, separator=separator) for each in self.name_list]
        paths = [parse_template(each, separator="/") for each in self.path_list]
        if not (names or paths):
            raise ValueError("expected names, paths or both")
        if max(len(names), len(paths)) > MAX_NAMES:
            raise ValueError(f"expected at most {MAX_NAMES} names")
        for path in paths:
            parse_path("0".join(path.literals))
        options = [self.scale, self.add, self.when, *self.sizes.values(), *self.pad.values()]
        for each in (*options, *[size for some in self.cat.values() for size in some]):
            if isinstance(each, str):
                require_expression(each)
        for name, size in self.pad.items():
            if not isinstance(size, str):
                whole_number(size, f"pad: {name}")
        if not self.is_ignoring:
            self._check_axes(name_axes, path_axes, names, paths)

    def _check_axes(
        self,
        axes: AxisNames,
        path_axes: AxisNames,
        names: Sequence[NameTemplate],
        paths: Sequence[NameTemplate],
    ) -> None:
        for some in (names, paths):
            if len({each.names for each in some}) > 1 or len({each.has_any for each in some}) > 1:
                raise ValueError("expected the same indices in all names of a list")
        if names[0].has_any != paths[0].has_any:
            raise ValueError("expected ** on both sides, or on none")
        if names[0].has_any and LIST in (*axes.atoms, *path_axes.atoms):
            raise ValueError("expected one name and one path with **")
        one = {*axes.atoms} | (names[0].names & {*path_axes.atoms})
        other = {*path_axes.atoms} | (paths[0].names & {*axes.atoms})
        lists = {*axes.atoms, *path_axes.atoms} & {LIST}
        if (LIST in axes.atoms and len(paths) < 2) or (LIST in path_axes.atoms and len(names) < 2):
            raise ValueError("expected a list of names beside an axis L")
        if not lists and len(names) != len(paths) and not self.cat:
            raise ValueError(
                f"{len(names)} names and {len(paths)} paths: expected an axis L or cat, or as "
                "many of each"
            )
        if one | lists != other | lists:
            raise ValueError(
                f"expected the same axes on both sides, found {sorted(one)} and {sorted(other)}: "
                "an axis of one side only has to be an index in the names of the other"
            )
        for name in (*self.sizes, *self.pad, *self.cat):
            if name not in one | other | names[0].names | paths[0].names:
                raise ValueError(f"{name!r} is no axis of the rule")
        for name in self.pad:
            if name not in path_axes.atoms or name not in axes.atoms:
                raise ValueError(f"pad: {name!r} is no axis of both sides")
        for name, sizes in self.cat.items():
            if (len(names) > 1) == (len(paths) > 1) or len(sizes) != max(len(names), len(paths)):
                raise ValueError(f"cat: expected a size of {name!r} for each name of one list")


def separator_of(names: Iterable[str]) -> str:
    """Return the separator of the keys in names: "/" if it stands in one of them, else "."."""
    return "/" if any("/" in name for name in names) else "."


def _listed(names: Sequence[str] | str | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)
