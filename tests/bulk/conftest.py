"""Worker processes that the tests of bulk work share, and small tasks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from cordwood.bulk.task_size import task_size
from tests.bulk.executors import spawned


@pytest.fixture(scope="package")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Run two new processes."""
    with spawned() as pool:
        yield pool


@pytest.fixture
def small_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Divide calls into tasks of the TASK_BYTES of the module of the test."""
    with task_size(request.module.TASK_BYTES):
        yield
