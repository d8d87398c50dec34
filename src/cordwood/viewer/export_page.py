"""The export of the viewer: the page with as many resources as fit, in one file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from cordwood.errors import CordwoodError
from cordwood.io.progress import Progress, Report
from cordwood.message_text import counted
from cordwood.storage.atomic_file import atomic_file
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.viewer.page import embedded, page
from cordwood.viewer.resources import Resources, error_json, json_bytes, resource_name

_NEIGHBOURS = 10  # steps of a run whose differences come before everything else
_MAX_COMPARED_BYTES = 8 << 30  # of these
_START_BYTES = 4 << 10  # room that `start` may need besides its paths
# Kinds of resources in words, for what did not fit.
_NOUNS = {
    "leaf": ("leaf page", "leaf pages"),
    "statistics": ("leaf's statistics", "leaves' statistics"),
    "diff": ("difference", "differences"),
    "diff-leaf": ("difference of a leaf", "differences of leaves"),
    "norms": ("step's norms", "steps' norms"),
    "checkpoint": ("list of leaves", "lists of leaves"),
}
T = TypeVar("T")
_ELEMENT_BYTES = len('<script type="application/json" data-resource=""></script>\n')


class Export(NamedTuple):
    """An exported page.

    Attributes:
        html: the file.
        left_out: for each kind of resource, how many did not fit.
        left_out_text: the same in words; "" if everything did.
        unreadable: messages of errors, by the names of the resources.
    """

    html: bytes
    left_out: Mapping[str, int]
    left_out_text: str
    unreadable: Mapping[str, str]


def export_page(resources: Resources, *, max_bytes: int, progress: Report | None = None) -> Export:
    """Return the page with as many resources as fit, the most important first.

    Args:
        resources: the resources of what was opened.
        max_bytes: the limit for the size of the file.
        progress: called from time to time.

    Raises:
        ValueError: the list of leaves or steps alone exceeds the limit.
        Exception: an error of the list of leaves or steps.
    """
    start = resources.answer("start")
    room = max_bytes - len(page([]).html.encode()) - len(json_bytes(start)) - _START_BYTES
    included: dict[str, bytes] = {}
    left_out: dict[str, int] = {}
    unreadable: dict[str, str] = {}

    def reporting(name: str) -> Report | None:
        """Return the callback for the reading of one resource; the bar shows the file's size."""
        if progress is None:
            return None
        call, done = progress, Progress(max_bytes - room, max_bytes, name)
        call(done)
        return lambda reading: call(done._replace(doing=f"{name} {_percent(reading)}"))

    for name in _required(resources):
        value = resources.answer_json(name, reporting(name))
        room -= _size(name, value)
        included[name] = value
    if room < 0:
        needed = -(-(max_bytes - room) // 100_000) / 10  # rounded up to one decimal
        raise ValueError(
            f"the page and its lists need {needed:g} MB, which is more than the limit of "
            f"{max_bytes / 1_000_000:g} MB; raise --max-mb"
        )
    for name in _optional(resources, included):
        kind = name.partition("/")[0]
        if kind in left_out:
            left_out[kind] += 1
            continue
        try:
            value = resources.answer_json(name, reporting(name))
        except (CordwoodError, OSError, ValueError, KeyError) as e:
            unreadable[name] = error_json(e)["message"]
            continue
        if _size(name, value) > room:
            left_out[kind] = 1
            continue
        room -= _size(name, value)
        included[name] = value
    words = ", ".join([counted(count, *_NOUNS[kind]) for kind, count in left_out.items()])
    start |= {"exported": True, "left_out": left_out, "left_out_text": words}
    html = page(
        [("start", json_bytes(start)), *included.items()], title=f"{start['title']} - cordwood"
    ).html
    if progress is not None:
        progress(Progress(len(html), len(html)))
    return Export(html.encode(), left_out, words, unreadable)


def write_export(path: str, html: bytes) -> None:
    """Write the file atomically; raise what `atomic_file` does."""

    def write() -> None:
        with atomic_file(path) as file:
            file.write(memoryview(html), 0)

    run_in_worker(write)


def refuse_existing_page(path: str) -> None:
    """Raise an error if there is something at a path; another one if it is a directory."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a directory; give the name of the file to write")
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists; pass --force to replace it")


def refuse_source(path: str, sources: Iterable[str]) -> None:
    """Raise ValueError if the file that is to be written is one of the checkpoints."""
    if os.path.exists(path) and any(
        os.path.samefile(path, source) for source in sources if os.path.exists(source)
    ):
        raise ValueError(f"{path} is the checkpoint to show: choose another name for the export")


def _size(name: str, value: bytes) -> int:
    return _ELEMENT_BYTES + len(name) + len(embedded(value))


def _percent(progress: Progress) -> str:
    return f"{min(1, progress.done_bytes / (progress.total_bytes or 1)):.0%}"


def _required(resources: Resources) -> Iterator[str]:
    """Yield the names of the resources without which there is no view."""
    sources = resources.sources
    if sources.kind == "run":
        yield "run"
        return
    for source in sources.paths:
        yield resource_name("checkpoint", source)
    if sources.kind == "diff":
        yield resource_name("diff", "a", "b", "digests")


def _optional(resources: Resources, required: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the names of other resources, the most important first.

    Args:
        resources: the resources of what was opened.
        required: those that are included in any case.
    """
    sources = resources.sources
    if sources.kind == "run":
        yield from _of_a_run(resources, json.loads(required["run"])["steps"])
        return
    if sources.kind == "diff":
        yield resource_name("diff", "a", "b", "sample")
        yield from _changed_leaves(resources)
    for source in sources.paths:
        yield from _leaves(resources, source)


def _of_a_run(resources: Resources, steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the newest step, its differences to those before, norms, and the other steps.

    The values of neighbours are compared up to a limit of bytes read.
    """
    newest = [step["name"] for step in steps if step["state"] == "whole"][::-1]
    if not newest:
        return
    yield resource_name("checkpoint", newest[0])
    pairs = [(a, b) for b, a in pairwise(newest)]
    for a, b in pairs[:_NEIGHBOURS]:
        yield resource_name("diff", a, b, "digests")
    room = _MAX_COMPARED_BYTES
    for a, b in pairs[:_NEIGHBOURS]:
        # The bytes of two steps whose digests do not tell whether they are equal.
        by_digests = _readable(resources, resource_name("diff", a, b, "digests"))
        room -= 0 if by_digests is None else 2 * int(by_digests["unread_bytes"])
        if room >= 0:
            yield resource_name("diff", a, b, "all")
    # As far as there is room: first some steps from all over the run, then those between them.
    for step in coarse_to_fine(newest):
        yield resource_name("norms", step, "sample")
    for a, b in pairs[_NEIGHBOURS:]:
        yield resource_name("diff", a, b, "digests")
    for step in newest[1:]:
        yield resource_name("checkpoint", step)
    yield from _leaves(resources, newest[0])


def _readable(resources: Resources, name: str) -> Any:
    """Return the value of a resource; None if it cannot be read, which the export reports."""
    try:
        return json.loads(resources.answer_json(name))
    except (CordwoodError, OSError):
        return None


def coarse_to_fine(values: Sequence[T]) -> list[T]:
    """Return values in an order whose beginnings are spread over all of them.

    >>> coarse_to_fine([0, 1, 2, 3, 4])
    [0, 4, 2, 1, 3]
    """
    last = len(values) - 1
    positions = dict.fromkeys((0, last)) if values else {}
    step = last
    while step > 1:
        step = -(-step // 2)
        positions.update(dict.fromkeys(range(0, last, step)))
    return [values[position] for position in positions]


def _changed_leaves(resources: Resources) -> Iterator[str]:
    """Yield the names of the differences of leaves, the largest change first."""
    by_values = _readable(resources, resource_name("diff", "a", "b", "sample"))
    if by_values is None:
        return
    rows = by_values["rows"]
    changes = [
        (math.inf if change == "NaN" else float(change), i, j)
        for i, j, change in zip(rows["i"], rows["j"], rows["relative_l2"], strict=True)
        if i is not None and j is not None and change is not None
    ]
    for change, i, j in sorted(changes, key=lambda row: -row[0]):
        if change > 0:
            yield resource_name("diff-leaf", "a", "b", i, j, "sample")


def _leaves(resources: Resources, source: str) -> Iterator[str]:
    """Yield the names of the leaf pages and the sample statistics, the largest leaf first."""
    checkpoint = _readable(resources, resource_name("checkpoint", source))
    if checkpoint is None:
        return
    leaves = checkpoint["leaves"]
    sizes = leaves["size_bytes"]
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        yield resource_name("leaf", source, number)
        is_time = leaves["dtype"][number].startswith(("datetime", "timedelta"))
        if sizes[number] and leaves["kind"][number] != "prng_key" and not is_time:
            yield resource_name("statistics", source, number, "sample")
