"""Parts of tasks: every task is in one part, and parts are of about equal sizes."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from cordwood.bulk.task_size import TASK_BYTES
from cordwood.index import HeaderDigest, Source
from cordwood.plan.parts_of_work import WorkPart, parse_part, tasks_of_part
from cordwood.plan.source_ranges import group_ranges
from cordwood.storage.locations import Url
from cordwood.verifying.verify_tasks import BlockChoice, CheckRanges


def test_every_task_is_in_one_part() -> None:
    rng = random.Random(1)
    for _ in range(200):
        sizes = [rng.choice((0, 1, 7, 100)) for _ in range(rng.randrange(30))]
        count = rng.randrange(1, 40)
        parts = [tasks_of_part(sizes, WorkPart(index, count)) for index in range(count)]
        assert [position for part in parts for position in part] == [*range(len(sizes))]
        total = sum([max(1, size) for size in sizes])
        for part in parts:
            assert sum([max(1, sizes[each]) for each in part]) <= total / count + 100


def test_no_part_is_all() -> None:
    assert tasks_of_part([1, 2], None) == range(2)
    assert parse_part(None) is None


@pytest.mark.parametrize("value", [(4, 4), (-1, 4), (0, 0), (1.0, 2), 3, "1/4", (1, 2, 3)])
def test_parts_are_counted_from_zero(value: Any) -> None:
    with pytest.raises(ValueError, match="counted from 0, so i is 0 to n - 1"):
        parse_part(value)


def test_ranges_cover_each_source_and_are_cut_where_blocks_begin() -> None:
    rng = random.Random(2)
    for _ in range(200):
        sources = []
        for number in range(rng.randrange(1, 6)):
            head = rng.randrange(1, 30)
            size = head + rng.choice((0, 1, 63, 64, 65, 500))
            sources.append(Source(f"s{number}", size, None, HeaderDigest(head, b"")))
        groups = list(group_ranges(sources, limit_bytes=64))
        ends: dict[Source, int] = dict.fromkeys(sources, 0)
        for group in groups:
            size = sum([part.stop - part.start for part in group])
            assert size <= 64 or len(group) == 1
            for source, start, stop in group:
                assert start == ends[source]
                assert source.header_digest is not None
                assert not start or (start - source.header_digest.header_bytes) % 64 == 0
                ends[source] = stop
        assert ends == {source: source.size_bytes for source in sources}


def test_small_sources_are_grouped() -> None:
    sources = [Source(str(number), 10) for number in range(10)]
    assert [len(group) for group in group_ranges(sources, limit_bytes=40)] == [4, 4, 2]


def test_a_task_needs_little_memory() -> None:
    """400,000 tasks, which are 100 TB, so need less than 1 GB."""
    count = 10_000
    location, choice = Url("s3", "bucket", "run/100"), BlockChoice()
    tracemalloc.start()
    try:
        sources = [
            Source(f"data-{number:016x}.safetensors", 10**9, None, HeaderDigest(32768, bytes(16)))
            for number in range(count // 4)
        ]
        tasks = [
            CheckRanges(location, ranges, choice)
            for ranges in group_ranges(sources, limit_bytes=TASK_BYTES)
        ]
        part = tasks_of_part([task.size_bytes for task in tasks], WorkPart(1, 4))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(tasks), len(part)) == (count, count // 4)
    assert peak < 10**9 * count // 400_000
