"""Groups of real processes, one of each size for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.group import Group


@pytest.fixture(scope="module")
def four() -> Iterator[Group]:
    with Group(4) as group:
        yield group


@pytest.fixture(scope="module")
def two() -> Iterator[Group]:
    with Group(2) as group:
        yield group
