"""Cases: tiny models of transformers and published ones, as the files in data/ describe them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.recipes.families.tensors import Shapes, expand

DATA = Path(__file__).parent / "data"


class Size(NamedTuple):
    """A published model: its `config.json`, and the names and shapes of its tensors."""

    config: dict[str, Any]
    shapes: Shapes


class Case(NamedTuple):
    """A tiny model, and published models of the same kind.

    Attributes:
        name: the name of its file in data/.
        family: the family, as `find_recipe` names it.
        config: the `config.json` that transformers wrote.
        shapes: shapes of the tensors in the safetensors file that transformers wrote.
        converted: for each program and dtype, digests by path of what it makes of the tensors.
        sizes: published models.
    """

    name: str
    family: str
    config: dict[str, Any]
    shapes: Shapes
    converted: dict[str, dict[str, dict[str, str]]]
    sizes: dict[str, Size]


def read_case(name: str) -> Case:
    document = json.loads((DATA / f"{name}.json").read_text())
    sizes = {
        size: Size(value["config"], expand(value["tensors"]))
        for size, value in document["sizes"].items()
    }
    return Case(
        name,
        document["family"],
        document["config"],
        expand(document["tensors"]),
        document["converted"],
        sizes,
    )


CASES = [read_case(path.stem) for path in sorted(DATA.glob("*.json"))]
