"""A recipe: the rules between two trees, their sizes and spellings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self, cast

from cordwood import dtypes
from cordwood.did_you_mean import nearest_name
from cordwood.errors import MismatchError
from cordwood.keypath import parse_path
from cordwood.public_names import imported
from cordwood.recipes.field_types import is_size_number, require_field_types
from cordwood.recipes.recipe_json import parse_recipe, recipe_json
from cordwood.recipes.recipe_table import RecipeTable
from cordwood.recipes.rule import Rule, separator_of
from cordwood.recipes.size_expressions import (
    Number,
    evaluate,
    expression_names,
    require_expression,
    solve_sizes,
)

MAX_RULES = 10_000


@dataclass(frozen=True)
class Recipe:
    """Rules between the names of one tree and the key paths of another.

    It maps names to paths; `inverse()` maps paths to names.

    Attributes:
        rules: the rules. An element of one tree that no rule takes is an error.
        name: a name for messages.
        sizes: sizes of axes and other numbers by name, as numbers or expressions of others, such as
            the numbers in a `config.json`. An axis or index of that name has that size.
        prefixes: other spellings of the beginning of names, by the one in the rules:
            {"transformer.": [""]} also takes names without it.
        roots: containers below which the rules apply, on both sides: "" for the whole tree;
            ["params", "**/mu", "**/nu"] for parameters and the moments of an optimizer. With roots,
            all other leaves stay as they are.
        store_dtype: the dtype of arrays that are scaled or added to; None: the stored one.
        lossy: True accepts that such arrays do not come back exactly.
        reverse: True maps paths to names.
    """

    rules: Sequence[Rule]
    name: str = ""
    sizes: Mapping[str, Number | str] = field(default_factory=dict)
    prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    roots: Sequence[str] = ("",)
    store_dtype: str | None = None
    lossy: bool = False
    reverse: bool = False

    def __post_init__(self) -> None:
        require_field_types(self, "recipe")
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "roots", tuple(self.roots))
        prefixes = {prefix: tuple(others) for prefix, others in self.prefixes.items()}
        object.__setattr__(self, "prefixes", prefixes)
        object.__setattr__(self, "sizes", _plain_numbers(self.sizes))
        where = self.label
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(
                    f"{where}: rules: expected Rule(names, axes, paths, path_axes), found "
                    f"{rule!r:.80} of type {type(rule).__name__}"
                )
        if not 0 < len(self.rules) <= MAX_RULES:
            raise ValueError(f"{where}: expected 1 to {MAX_RULES} rules, found {len(self.rules)}")
        try:
            for size in self.sizes.values():
                require_expression(size)
            solve_sizes(self.sizes, {})
        except ValueError as e:
            raise ValueError(f"{where}: sizes: {e}") from e
        for rule in self.rules:
            lone = rule.lone_indices - self.sizes.keys()
            if lone:
                names = ", ".join(sorted(lone))
                raise ValueError(
                    f"{where}, rule {rule.label}: {names} is in the names of one side only: "
                    "expected it in the names or the axes of the other side, or in sizes"
                )
        for root in self.roots:
            if "*" in root.replace("**/", ""):
                raise ValueError(f"{where}: root {root!r}: only **/ at its beginning is a pattern")
            parse_path(root.removeprefix("**/"))
        if self.store_dtype is not None and not dtypes.is_floating(dtypes.parse(self.store_dtype)):
            raise ValueError(
                f"{where}: store_dtype is for arrays that are scaled or added to: expected a "
                f"floating dtype such as 'float32', found {self.store_dtype!r}"
            )

    def inverse(self) -> Recipe:
        """Return the recipe from the other tree to this one."""
        return replace(self, reverse=not self.reverse)

    def replace(self, **attributes: Any) -> Recipe:
        """Return the recipe with other attributes, such as `lossy=True`."""
        names = [each.name for each in fields(self)]
        for name in attributes.keys() - {*names}:
            close = nearest_name(name, names)
            hint = "" if close is None else f"; did you mean {close!r}?"
            expected = ", ".join(names)
            raise TypeError(
                f"replace: {self.label} has no attribute {name!r}: expected {expected}{hint}"
            )
        return replace(self, **attributes)

    def with_config(self, config: Mapping[str, Any]) -> Recipe:
        """Return the recipe with the sizes that its expressions have for a `config.json`.

        Args:
            config: the contents of the file; the numbers in a mapping in it are named with a dot:
                `text_config.hidden_size`. A number in `sizes` is the default of that name.

        Raises ValueError if an expression needs a value of the configuration that is no number.
        """
        if not isinstance(config, Mapping):
            raise TypeError(
                "with_config: expected the contents of a config.json as a dict, found "
                f"{type(config).__name__}"
            )
        texts = {name: size for name, size in self.sizes.items() if isinstance(size, str)}
        conditions = [rule.when for rule in self.rules if rule.when is not None]
        for name in frozenset().union(*map(expression_names, [*texts.values(), *conditions])):
            value = _value(config, name)
            if not (value is None or is_size_number(value)):
                raise ValueError(
                    f"config: {name}: expected a number, true or false, found {value!r:.80}"
                )
        names = frozenset(self.sizes).union(*map(expression_names, texts.values()))
        names = names.union(*[rule.names_of_numbers for rule in self.rules])
        numbers = {name: size for name, size in self.sizes.items() if name not in texts}
        for name in sorted(names):
            value = _value(config, name)
            if is_size_number(value):
                numbers[name] = value
        try:
            solved = solve_sizes(texts, _plain_numbers(numbers))
        except ValueError as e:
            raise ValueError(f"{self.label} with this config: {e}") from e
        return replace(self, sizes={**texts, **solved})

    def explain(
        self, tree: Any, like: Any = None, *, config: Mapping[str, Any] | None = None
    ) -> RecipeTable:
        """Return the table of what the recipe makes of a tree; no leaf is read.

        Args:
            tree: the path or URL of a checkpoint of any format, an open checkpoint, or a tree of
                arrays or of jax.ShapeDtypeStructs.
            like: the same, as the result should be; leaves that differ from it are marked. Sizes
                that are not known otherwise are those of its leaves, as in `load`.
            config: the contents of a `config.json`, as `with_config` takes them.

        Returns:
            A `cordwood.results.RecipeTable`; printed, it has a line for each leaf: its key path,
            dtype and shape, and those that it is made of.

        Raises:
            MismatchError: the recipe does not fit the tree; the message has all that does not fit.
            Exception: all errors of `cordwood.open`.

        >>> import numpy as np
        >>> recipe = Recipe([Rule("layers.{i}.w", "out in", "w", "i in out")])
        >>> recipe.explain({f"layers.{i}.w": np.zeros((2, 3), np.float32) for i in range(4)})
        w float32[4,3,2] <- layers.0.w float32[2,3] to layers.3.w, 4 in all
        """
        explain = imported("cordwood.api.explain_recipe", "explain_recipe")
        return cast("RecipeTable", explain(self, tree, like, config))

    @property
    def label(self) -> str:
        """The words for it in messages: recipe 'llama'; recipe alone if it has no name."""
        return f"recipe {self.name!r}" if self.name else "recipe"

    @cached_property
    def values(self) -> Mapping[str, Number]:
        """The sizes that are numbers, or expressions of numbers."""
        return solve_sizes(self.sizes, {})

    @cached_property
    def separator(self) -> str:
        """The separator of the keys in names: "." for joined names, "/" for key paths."""
        return separator_of([name for rule in self.rules for name in rule.name_list])

    def to_json(self) -> str:
        """Return the recipe as JSON, with a line for each rule."""
        return recipe_json(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, name: str = "recipe") -> Self:
        """Return the recipe in a text that `to_json` could have written.

        Args:
            text: JSON.
            name: the name of the file in errors.

        Raises:
            FormatError: it is no recipe; the message says what is wrong and where.
        """
        return parse_recipe(cls, text, name=name)

    def active_rules(self) -> list[Rule]:
        """Return the rules without those whose `when` is 0.

        Raises MismatchError if a condition has names without a number.
        """
        return [rule for rule in self.rules if self._holds(rule)]

    def _holds(self, rule: Rule) -> bool:
        if rule.when is None:
            return True
        try:
            return bool(evaluate(rule.when, self.values))
        except KeyError as e:
            raise MismatchError(
                f"{self.label}, rule {rule.label}: the condition needs {e.args[0]!r}, which has no "
                "number: give the contents of the config.json by with_config, or a number in sizes"
            ) from e

    def __str__(self) -> str:
        arrow = "paths to names" if self.reverse else "names to paths"
        head = f"recipe {self.name or 'without a name'}, {arrow}:"
        return "\n".join([head, *[f"  {rule}" for rule in self.rules]])


def _value(config: Mapping[str, Any], name: str) -> object:
    """Return the value of that name in a configuration, or in a mapping in it; None for none."""
    outer, _, inner = name.partition(".")
    value = config.get(outer)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


def _plain_numbers(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes with True and False as the numbers 1 and 0."""
    return {name: int(each) if isinstance(each, bool) else each for name, each in sizes.items()}
