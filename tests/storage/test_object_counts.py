"""The number of data objects of a large state, and the requests of a save and a load."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import cordwood
from cordwood.plan.cells import ShardedLeaf, assign_cells
from cordwood.plan.packs import packs_of_all
from cordwood.sharding.boxes import ShardGrid
from cordwood.storage.object_stores.object_storage import ObjectStorage
from tests.storage.web_stores import WebStore, web_store

LEAVES = 450
PROCESSES = 1024


def test_five_terabytes_of_a_thousand_processes() -> None:
    """Each holds a 1,024th of every leaf; in a run there is one more object for each process."""
    rows = 331 * PROCESSES
    cuts = (tuple(range(0, rows, rows // PROCESSES)), (0,))
    holders = tuple((process,) for process in range(PROCESSES))
    leaves = [
        ShardedLeaf(leaf, 4, ShardGrid((rows, 8192), cuts, holders)) for leaf in range(LEAVES)
    ]
    assert 4.9e12 < LEAVES * rows * 8192 * 4 < 5.1e12
    shares = assign_cells(leaves, process_count=PROCESSES, sizes=ObjectStorage.file_sizes)
    assert sum(map(len, packs_of_all(shares))) + PROCESSES + 1 < 5000


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def test_requests_do_not_depend_on_the_number_of_leaves(web: WebStore) -> None:
    url = f"{web.url}/run"
    tree = {str(n): np.full(1000, n, np.float32) for n in range(LEAVES)}
    cordwood.save(url, tree)
    assert len(web.requests) <= 16
    web.requests.clear()
    cordwood.load(url)
    assert len(web.requests) <= 4
