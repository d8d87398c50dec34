"""Tests of an object store: which requests of saves and loads work there, and how fast.

All objects of the tests are below one name of their own, and are removed at the end.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.message_text import size_text
from cordwood.storage.doctor import Finding
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.conditional_writes import find_problem_of_conditions
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.multipart_upload import upload_in_parts
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_uploads import PART_BYTES, PARTS_IN_FLIGHT
from cordwood.storage.paths import new_save_id
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_TRIAL_BYTES = 64 << 20
_LATENCY_REQUESTS = 10
_LISTED = ("listed-0", "listed-1", "listed-2")
_NAMES = ("small", "condition", "parts", "large", *_LISTED)
_LOOK_SECONDS = 0.05
_LAG_SECONDS = 5.0  # the longest wait for a new object to be listed
_SMALL = b"a small object of cordwood doctor"


def examine_store(
    url: Url,
    *,
    index_name: str,
    trial_bytes: int = _TRIAL_BYTES,
    lag_seconds: float = _LAG_SECONDS,
) -> list[Finding]:
    """Try the requests of saves and loads below a URL, and remove all objects of the tests.

    Args:
        url: the bucket, or any URL in it.
        index_name: the name of the index of a checkpoint, which a web server is asked for.
        trial_bytes: the size of the object whose upload and download are timed; a multiple of the
            size of a part of an upload.
        lag_seconds: the longest wait for a new object to be listed.

    Raises OSError if the store cannot be reached, or refuses both a listing and a write;
    UnsupportedFormatError for wrong options, and for a URL of the hub.
    """
    refuse_hub(url)
    if url.is_web:
        return _examine_web_server(url, index_name)
    store = ObjectStore(url.child(f".cordwood-doctor-{new_save_id()}"))
    refused: OSError | None = None
    try:
        object_names(store)
    except (PermissionError, FileNotFoundError) as e:
        refused = e
    try:
        store.write("small", _SMALL)
    except (PermissionError, FileNotFoundError) as e:
        if refused is not None:
            raise refused from e
        text = f"{_text(e)}: saves do not work, loads may"
        return [Finding("listing", True, True, "works"), Finding("write", False, True, text)]
    try:
        findings = [
            Finding("write", True, True, "works"),
            _tried("read", lambda: _read(store), "neither loads nor saves work"),
            _tried("range", lambda: _read_range(store), "loads do not work"),
            _conditions(store),
            _replacement(store),
            _listing(store, lag_seconds),
            _latency(store, "small"),
            _tried("multipart upload", lambda: _upload_parts(store), "saves do not work"),
        ]
        if findings[-1].good:
            findings += _rates(store, trial_bytes)
        return [*findings, _deletion(store)]
    except BaseException:
        with suppress(OSError, CordwoodError):
            store.delete(_NAMES)
        raise


def _deletion(store: ObjectStore) -> Finding:
    """Remove all objects of the tests."""
    try:
        store.delete(_NAMES)
        undeleted = [name for name in _NAMES if store.size_of(name) is not None]
        listed = [name for name in object_names(store) if name in _NAMES]
    except (OSError, CordwoodError) as e:
        text = f"{_text(e)}: saves work, the data that they replace stays, and so does {store.url}"
        return Finding("deletion", False, False, text)
    if undeleted:
        text = f"the store reports it as done, but {store.url_of(undeleted[0])} is still there"
        return Finding("deletion", False, False, text)
    if listed:
        text = f"{listed[0]} is still listed after it was deleted: managers may see deleted steps"
        return Finding("deletion", False, True, text)
    return Finding("deletion", True, False, "works")


def _text(error: BaseException) -> str:
    """Return in short what a store has answered, or the whole message of an error."""
    text = getattr(error, "strerror", None) or str(error)
    status = re.search(r"status code: (\d{3} [A-Za-z ]*[A-Za-z])", text)
    if isinstance(error, PermissionError):
        return f"refused ({status[1]})" if status else "refused"
    return f"failed ({status[1]})" if status else text


def _tried(name: str, attempt: Callable[[], None], consequence: str) -> Finding:
    try:
        attempt()
    except (OSError, CordwoodError) as e:
        return Finding(name, False, True, f"{_text(e)}: {consequence}")
    return Finding(name, True, True, "works")


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise OSError(f"expected {expected}, found something else")


def _read(store: ObjectStore) -> None:
    stored = store.read("small", limit_bytes=len(_SMALL))
    _require(stored.data == _SMALL, "the bytes that were written")


def _read_range(store: ObjectStore) -> None:
    part = store.read_range("small", 2, 7)
    _require(part is not None and part.data == _SMALL[2:7], "bytes 2 to 6 of the object")
    _require(part is not None and part.object_bytes == len(_SMALL), "the size of the object")


def _conditions(store: ObjectStore) -> Finding:
    """Test the creation of an object on condition, twice, and its replacement, twice."""
    consequence = "saves are refused here; loads work"
    try:
        problem = find_problem_of_conditions(store, "condition")
    except (OSError, CordwoodError) as e:
        problem = _text(e)
    if problem:
        return Finding("conditional writes", False, True, f"{problem}: {consequence}")
    is_bare = store.experience.takes_bare_tags
    form = "with tags without quotes" if is_bare else "with tags as the store returns them"
    return Finding("conditional writes", True, True, f"work, {form}")


def _replacement(store: ObjectStore) -> Finding:
    try:
        store.write("small", _SMALL)
    except PermissionError:
        text = "refused: saves to new paths work, a checkpoint is not replaced"
        return Finding("replacement", False, False, text)
    except (OSError, CordwoodError) as e:
        return Finding("replacement", False, True, _text(e))
    return Finding("replacement", True, False, "works")


def _upload_parts(store: ObjectStore) -> None:
    size = PART_BYTES + 1
    _upload(store, "parts", size)
    _require(store.size_of("parts") == size, f"an object of {size} bytes")
    part = store.read_range("parts", PART_BYTES, size)
    _require(part is not None and part.data == b"\0", "the bytes of the second part")


def _listing(store: ObjectStore, lag_seconds: float) -> Finding:
    """Test that each object is listed at once after it was written."""
    try:
        names = object_names(store)
        _require({"small", "condition"} <= set(names), "the names of the objects of this test")
        lags = []
        for name in _LISTED:
            store.write(name, _SMALL)
            lags.append(_seconds_until_listed(store, name, lag_seconds))
    except (OSError, CordwoodError) as e:
        text = f"{_text(e)}: saves, managers and gc do not work"
        return Finding("listing", False, True, text)
    lag = max(lags)
    if lag == 0:
        return Finding("listing", True, True, "works, and lists what was just written")
    after = f"only {lag:.1f} s after" if lag < lag_seconds else f"not even {lag_seconds:g} s after"
    text = f"a new object is listed {after} it was written: saves fail, managers miss steps"
    return Finding("listing", False, True, text)


def _seconds_until_listed(store: ObjectStore, name: str, lag_seconds: float) -> float:
    """Return 0 if the first listing has a name, else how long that took, at most `lag_seconds`."""
    start = time.perf_counter()
    if name in object_names(store):
        return 0.0
    while name not in object_names(store):
        if time.perf_counter() - start > lag_seconds:
            return lag_seconds
        time.sleep(_LOOK_SECONDS)
        check_stop()
    return min(time.perf_counter() - start, lag_seconds)


def _latency(store: ObjectStore, name: str) -> Finding:
    seconds = []
    try:
        for _ in range(_LATENCY_REQUESTS):
            start = time.perf_counter()
            store.size_of(name)
            seconds.append(time.perf_counter() - start)
    except (OSError, CordwoodError) as e:
        return Finding("latency", False, False, _text(e))
    milliseconds = 1000 * statistics.median(seconds)
    text = f"{milliseconds:.1f} ms, the median of {_LATENCY_REQUESTS} requests"
    return Finding("latency", True, False, text)


def _rates(store: ObjectStore, size: int) -> list[Finding]:
    """Upload and download an object in parts; return the rates."""

    def download() -> None:
        parts = [(start,) for start in range(0, size, PART_BYTES)]
        threads = reading_threads(latency_bound=True)
        for is_right in map_in_threads(read, parts, threads=threads):
            _require(is_right, "the bytes that were uploaded")

    def read(start: int) -> bool:
        part = store.read_range("large", start, start + PART_BYTES)
        return part is not None and part.size_bytes == PART_BYTES

    attempts = {"upload": lambda: _upload(store, "large", size), "download": download}
    findings = []
    for name, attempt in attempts.items():
        start = time.perf_counter()
        try:
            attempt()
        except (OSError, CordwoodError) as e:
            findings.append(Finding(name, False, True, _text(e)))
            break
        rate = size / (time.perf_counter() - start) / (1 << 20)
        text = f"{rate:.0f} MiB/s for {size_text(size)}"
        findings.append(Finding(name, True, True, text))
    return findings


def _upload(store: ObjectStore, name: str, size: int) -> None:
    """Upload an object: random bytes in each whole part, and zeros in the rest."""
    part = memoryview(os.urandom(PART_BYTES))

    def fill(number: int, _: Callable[[], bool]) -> memoryview:
        size_bytes = size - number * PART_BYTES
        return part[:] if size_bytes >= PART_BYTES else memoryview(bytes(size_bytes))

    upload_in_parts(
        store,
        name,
        fill,
        -(-size // PART_BYTES),
        part_bytes=PART_BYTES,
        parts_in_flight=PARTS_IN_FLIGHT,
        check=check_stop,
    )


def _examine_web_server(url: Url, index_name: str) -> list[Finding]:
    """Ask a web server for the index of a checkpoint. Raises OSError if it does not answer."""
    store = ObjectStore(url)
    size = store.size_of(index_name)
    findings = [Finding("answer", True, True, "works"), _latency(store, index_name)]
    if size:
        findings.append(_tried("range", lambda: _read_first(store, index_name), "no loads"))
    text = f"{url.scheme}:// is read only: saves do not work"
    return [*findings, Finding("write", False, True, text)]


def _read_first(store: ObjectStore, name: str) -> None:
    part = store.read_range(name, 0, 1)
    _require(part is not None and part.size_bytes == 1, "one byte")
