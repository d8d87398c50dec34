"""`run/latest` and `run/best`: the step that such a path means, in every call that reads."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, cast

from cordwood.errors import CordwoodError, StorageError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.detect_file import format_of_file
from cordwood.formats.detect_in_store import format_in_store
from cordwood.formats.format_protocol import StepMetrics
from cordwood.formats.list_steps import steps_in
from cordwood.formats.load_format import (
    is_unfinished,
    records_of,
    saved_metrics,
    steps_beside,
    storage_of,
)
from cordwood.formats.place import Place, place_at
from cordwood.formats.step_names import MAX_STEPS_OPENED, number_in_name
from cordwood.formats.table import Format
from cordwood.io.open_files import LocalFile
from cordwood.message_text import printable
from cordwood.policies.saved_step import SavedStep, sort_by_metric
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import is_folder, locate_directory, path_exists, stale_stages
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks

_NICKNAME = re.compile(r"(?:(.*?)/)?(latest|best(?::[^/].*)?)", re.DOTALL)
_MODES = ("min", "max")
_MOST_NAMES = 8  # metrics in an error


class _Nickname(NamedTuple):
    """A path such as `run/latest`, in its parts."""

    location: Location
    root: Location
    name: str  # "latest", "best", "best:loss" or "best:accuracy:max"

    @property
    def metric(self) -> tuple[str, Literal["min", "max"]]:
        """The metric, "" if the path names none, and which value is best."""
        metric = self.name.partition(":")[2]
        before, _, mode = metric.rpartition(":")
        is_mode = mode in _MODES
        return (before if is_mode else metric), cast(
            "Literal['min', 'max']", mode if is_mode else "min"
        )


def locate_checkpoint(location: Location) -> Location:
    """Return the location of the checkpoint that a caller of a reading call means.

    `run/latest` is the newest complete step in the directory or URL `run`. `run/best` is the step
    with the least value of the only metric that its steps have, `run/best:loss` of the metric
    `loss`, and `run/best:accuracy:max` the step with the greatest. Of equal steps it is the newer.
    An entry of `run` that has such a name is itself. If `run` holds no complete step, the location
    is returned as it is. A web server lists nothing, and models of the hub are no runs, so a path
    below them is never another. But a model of the hub is listed, once in a call: the location then
    has the listing. A file on the hub is fetched, and lies in the cache then.

    Raises:
        ValueError: the steps have several metrics, and the path names none.
        FileNotFoundError: no step has metrics, or none has this one.
        OSError: the run cannot be listed, or the metrics of a step cannot be read.
    """
    if isinstance(location, Url) and location.is_hub:
        return _in_hub(location)
    nickname = _parse(location)
    if nickname is None:
        return location
    # In a worker, as `open_reader`: this imports modules of formats.
    step = run_in_worker(lambda: _step(nickname))
    return location if step is None else step


def _in_hub(url: Url) -> Location:
    """Return the path in the cache of a file on the hub; the listed URL for a folder."""
    from cordwood.storage.hub.hub_directory import locate_on_hub

    return run_in_worker(lambda: locate_on_hub(url))


def is_nickname(location: Location) -> bool:
    """Return True if a location means a step by its rank, and nothing of that name exists."""
    nickname = _parse(location)
    return nickname is not None and not _is_entry(nickname)


def _parse(location: Location) -> _Nickname | None:
    text = location.key if isinstance(location, Url) else location.text.rstrip("/")
    match = _NICKNAME.fullmatch(text)
    if match is None:
        return None
    if isinstance(location, LocalPath):
        root: Location = LocalPath(match[1] or ("/" if text.startswith("/") else "."))
    elif location.is_web or location.is_hub or not (location.bucket or match[1]):
        return None  # a web server lists nothing, and memory:// alone is no place
    else:
        root = location
        for _ in match[2].split("/"):  # the name of a metric may have slashes
            root = root.parent
    return _Nickname(location, root, match[2])


def _is_entry(nickname: _Nickname) -> bool:
    """Return True if something of that name exists, or a save to it has not finished."""
    first = nickname.name.partition("/")[0]
    if isinstance(nickname.root, LocalPath):
        path = nickname.root.child(first)
        return path_exists(locate_directory(path)) or bool(stale_stages(path))
    with suppress(FileNotFoundError):
        return place_at(nickname.root).has(first)
    return False


def _step(nickname: _Nickname) -> Location | None:
    """Return the location of the step; None if the path is itself, or nothing can be chosen."""
    if _is_entry(nickname):
        return None
    root = nickname.root
    if isinstance(root, LocalPath):
        root = LocalPath(locate_directory(root))
        if not is_folder(root):
            return None
    try:
        place = place_at(root)
        format = format_in(place)
        names = steps_in(place) if format is None else steps_beside(format, place)
    except StorageError:
        raise
    except (CordwoodError, FileNotFoundError, NotADirectoryError):
        return None  # the call reports the error for the path itself
    if not names:
        return None
    name = (
        _newest(place, names) if nickname.name == "latest" else _best(nickname, place, list(names))
    )
    return None if name is None else nickname.root.child(name)


def _format_of_step(place: Place, name: str) -> Format | None:
    """Return the format of a complete step; None if its save has not finished."""
    child = place.child(name)
    try:
        if name in place.folders:
            format = format_in(child)
            return None if format is None or is_unfinished(format, child) else format
        if isinstance(child.location, Url):
            return format_in_store(child.location)
        with LocalFile(child.location) as file:
            return format_of_file(file, child.location)
    except StorageError:
        raise  # another step must not take the place of one that the storage does not show
    except (CordwoodError, FileNotFoundError, NotADirectoryError):
        return None  # also if it was just deleted


def _newest(place: Place, names: Sequence[str]) -> str | None:
    newer: list[str] = []
    for name in reversed(names[-MAX_STEPS_OPENED:]):
        if _format_of_step(place, name) is not None:
            if newer:
                text = printable(", ".join(newer))
                log.info("%s: the newest complete step is %s, not %s", place.path, name, text)
            return name
        newer.append(name)
    return None


# The best step


def _best(nickname: _Nickname, place: Place, names: Sequence[str]) -> str:
    metric, mode = nickname.metric
    steps = _measured(place, names)
    metrics = sorted({name for step in steps for name in step.metrics})
    if not metrics:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no step of {place.path} has metrics by which the best could be chosen: "
            "CheckpointManager.save takes metrics=, add_metrics adds them later",
            str(nickname.location),
        )
    listed = ", ".join(metrics[:_MOST_NAMES]) + (", ..." if len(metrics) > _MOST_NAMES else "")
    if not metric and len(metrics) > 1:
        best = str(nickname.root.child(f"best:{metrics[0]}"))
        raise ValueError(
            f"{nickname.location}: the steps have several metrics ({printable(listed)}): name one, "
            f"as {printable(best)} for the least value, or {printable(best)}:max for the greatest"
        )
    ranked = sort_by_metric(steps, metric or metrics[0], mode)
    if not ranked:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no step of {place.path} has a value of the metric {metric or metrics[0]!r}; their "
            f"metrics are {printable(listed)}",
            str(nickname.location),
        )
    name = names[ranked[0].step]
    log.info(
        "%s is %s: %s %.6g is the %s of %d steps",
        *(nickname.location, name, metric or metrics[0], ranked[0].metrics[metric or metrics[0]]),
        *("least" if mode == "min" else "greatest", len(ranked)),
    )
    return name


def _measured(place: Place, names: Sequence[str]) -> list[SavedStep]:
    """Return the complete steps that have metrics, numbered by their positions in `names`."""
    metrics: dict[int, StepMetrics] = {}

    def look(number: int) -> None:
        stored = _metrics(place, names[number])
        if stored is not None:
            metrics[number] = stored

    threads = reading_threads(latency_bound=place.directory is not None)
    run_tasks(len(names), threads=threads, make_worker=lambda: look)
    return [SavedStep(number, *metrics[number]) for number in sorted(metrics)]


def _metrics(place: Place, name: str) -> StepMetrics | None:
    format = _format_of_step(place, name)
    child = place.child(name)
    if format is None:
        return None
    if not format.records:
        return saved_metrics(format, child)
    try:
        index = storage_of(format).store_at(child.location).read_index()
        records = records_of(format)
        record = None if index is None else records.read_record(index, name=child.path)
    except FileNotFoundError:  # it has just been deleted
        return None
    except CordwoodError as e:
        log.warning("%s is not compared with the other steps: %s", child.path, e)
        return None
    if record is None or record.step != number_in_name(name):
        return None
    return StepMetrics(record.time, record.metrics)
