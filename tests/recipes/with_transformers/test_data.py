"""The files in tests/recipes/families/data: what the programs write and make today."""

from __future__ import annotations

import json

import pytest

from tests.recipes.families.cases import DATA
from tests.recipes.families.generate import document_of
from tests.recipes.families.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_the_data_of_a_case(name: str) -> None:
    recorded = json.loads((DATA / f"{name}.json").read_text())
    assert json.loads(json.dumps(document_of(MODELS[name]))) == recorded, "make recipes-data"
