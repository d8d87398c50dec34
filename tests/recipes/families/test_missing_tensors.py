"""Shipped recipes on files that lack a tensor or a layer, or have one too many: named, always."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, find_recipe
from cordwood.recipes.shipped_recipes import read_table
from tests.recipes.families.cases import CASES, Case
from tests.recipes.families.tensors import Shapes
from tests.recipes.families.test_published_sizes import write_sparse_file

RECIPES = [(case, to) for case in CASES for to in read_table(case.family)["to"]]
# A number in a name: a layer, or an expert.
NUMBER = re.compile(r"(?<=\.)(layers|layer|h|block|experts)\.(\d+)(?=\.)")


def numbered(shapes: Shapes) -> dict[str, list[int]]:
    """Return the numbers of layers and of experts, by what precedes them."""
    numbers: dict[str, set[int]] = {}
    for name in shapes:
        for match in NUMBER.finditer(name):
            before = name[: match.start(2)]
            if not re.search(r"block\.\d+\.layer\.$", before):  # T5 numbers the parts of a layer
                numbers.setdefault(before, set()).add(int(match[2]))
    return {before: sorted(some) for before, some in numbers.items()}


def damaged(shapes: Shapes, *, last: bool = True) -> Iterator[tuple[Shapes, str]]:
    """Yield the shapes without something, or with more, and a name that the error should have.

    Args:
        shapes: of the tensors of a model.
        last: True to lack the last layer or expert too, or to have one more.
    """
    kinds: dict[str, list[str]] = {}
    for name in shapes:
        kinds.setdefault(NUMBER.sub(r"\1.0", name), []).append(name)
    for names in kinds.values():
        middle = names[len(names) // 2]
        yield {name: shapes[name] for name in shapes if name != middle}, middle
        if last:
            yield {name: shapes[name] for name in shapes if name not in names}, names[-1]
    for before, some in numbered(shapes).items():
        for number in [some[len(some) // 2], *some[-1:]][: 1 + last]:
            part = f"{before}{number}."
            yield {name: shapes[name] for name in shapes if not name.startswith(part)}, part
        if last:
            part, new = f"{before}{some[-1]}.", f"{before}{some[-1] + 1}."
            more = {new + n.removeprefix(part): shapes[n] for n in shapes if n.startswith(part)}
            yield {**shapes, **more}, new


def message(folder: Path, shapes: Shapes, recipe: Recipe) -> str:
    write_sparse_file(folder / "model.safetensors", shapes)
    with pytest.raises(MismatchError) as error:
        cordwood.open(folder / "model.safetensors", recipe=recipe)
    return str(error.value)


def ids(value: Any) -> str:
    return value.name if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "to"), RECIPES, ids=ids)
def test_what_is_missing_or_too_many_is_named(case: Case, to: str, tmp_path: Path) -> None:
    recipe = find_recipe(to=to, config=case.config)
    silent = []
    for shapes, name in damaged(case.shapes):
        try:
            text = message(tmp_path, shapes, recipe)
        except pytest.fail.Exception:
            silent.append(f"{name}: nothing is said")
            continue
        template = re.sub(r"\\\.\d+(?=\\\.|$)", r"\\.({[^}]*}|\\d+)", re.escape(name))
        if not re.search(template, text):
            silent.append(f"{name}: {text}")
    assert not silent
