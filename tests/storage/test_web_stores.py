"""Saves to S3 and GCS over HTTP, with servers that refuse, lose, double and ignore requests."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import cordwood
from cordwood.errors import StorageError, UnsupportedFormatError
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.object_pool import GRACE_SECONDS
from cordwood.testing import assert_trees_equal
from tests.storage.web_stores import Answer, Request, WebStore, forget_stores, web_store
from tests.threads import in_threads, until

OLD = {"w": np.arange(5)}
NEW = {"w": np.arange(7)}
DAY = GRACE_SECONDS + 10


@pytest.fixture(params=["s3", "gs"])
def web(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store(request.param, monkeypatch) as store:
        yield store


def is_put(request: Request, name: str) -> bool:
    return request.method == "PUT" and request.key.endswith(name)


def is_delete(request: Request) -> bool:
    return request.method in ("DELETE", "DELETE_MANY")


def saved_at(monkeypatch: pytest.MonkeyPatch, seconds: float, url: str, tree: object) -> None:
    """Save at another time, by the clock of the store too."""
    clock = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock() + seconds)
        cordwood.save(url, tree)


def test_no_request_after_the_index_makes_a_save_raise(
    web: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request of a save is refused once: the tree is the old one, or save returns.

    It returns with a warning if the index had been replaced, and also if only the map of other
    tools could not be read before.
    """
    outcomes = []
    for number in itertools.count():
        url = f"{web.url}/{number}"
        cordwood.save(url, OLD)
        is_replaced = False
        refused: list[tuple[Request, bool]] = []
        numbers = itertools.count()

        def refuse(
            request: Request,
            key: str = f"{number}/cordwood.json",
            number: int = number,
            refused: list[tuple[Request, bool]] = refused,
            numbers: Iterator[int] = numbers,
        ) -> Answer | None:
            nonlocal is_replaced
            if next(numbers) == number:
                refused.append((request, is_replaced))
                return Answer(403)
            is_replaced = is_replaced or is_put(request, key)
            return None

        web.hook = refuse
        caplog.clear()
        try:
            cordwood.save(url, NEW)
            failed = False
        except OSError:
            failed = True
        web.hook = lambda _: None
        if not refused:
            break
        assert_trees_equal(cordwood.load(url), OLD if failed else NEW)
        ((request, was_replaced),) = refused
        assert failed == (not was_replaced and not request.key.endswith(".index.json")), request
        if not failed:
            assert any(record.levelno == logging.WARNING for record in caplog.records)
        outcomes.append(failed)
    assert 0 < sum(outcomes) < len(outcomes)


def test_what_was_replaced_is_deleted_though_the_map_cannot_be_written(
    web: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule that refuses to replace `model.safetensors.index.json`, at every save."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    web.hook = lambda r: Answer(403) if is_put(r, "model.safetensors.index.json") else None
    for _ in range(3):
        cordwood.save(url, NEW)
    named_by_the_map = 1  # tools that read it still find the first tree
    assert len(web.names("run")) == 3 + named_by_the_map
    assert "model.safetensors.index.json" in caplog.text
    assert_trees_equal(cordwood.load(url), NEW)


class Halt:
    """A hook that holds the n-th request from now on, of a key, until the other side is done."""

    def __init__(self, web: WebStore, number: int, key: str = "") -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self._left = number
        self._key = key
        self._web = web
        web.hook = self

    def __call__(self, request: Request) -> None:
        if self._key and not is_put(request, self._key):
            return
        self._left -= 1
        if self._left < 0 and not self.reached.is_set():
            self.reached.set()
            assert self.go.wait(30)

    def run(self, work: Callable[[], None]) -> threading.Thread:
        """Begin `work` in a thread; return when it is held, or has ended."""
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: self.reached.is_set() or not thread.is_alive())
        self._web.hook = lambda _: None
        return thread


@pytest.fixture
def old_objects(web: WebStore) -> None:
    """Let a save take more than a day."""
    web.age_seconds = DAY


class Save:
    """A save, and what it raised."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            cordwood.save(self.url, NEW)
        except Exception as e:  # noqa: BLE001
            self.error = e

    def check(self, *, has_old: bool) -> None:
        """Check that the save is complete if it returned, and left the old state if it raised."""
        if self.error is None:
            assert_trees_equal(cordwood.load(self.url), NEW)
            return
        assert isinstance(self.error, StorageError)
        assert "gc" in str(self.error)
        if has_old:
            assert_trees_equal(cordwood.load(self.url), OLD)
        else:
            with pytest.raises(FileNotFoundError):
                cordwood.load(self.url)


@pytest.mark.usefixtures("old_objects")
@pytest.mark.parametrize("has_old", [False, True])
def test_a_save_commits_while_gc_stands_before_any_of_its_requests(
    web: WebStore, has_old: bool
) -> None:
    outcomes = []
    for number in itertools.count():
        url = f"{web.url}/{number}"
        if has_old:
            cordwood.save(url, OLD)
        save = Save(url)
        before_index = Halt(web, 0, "/cordwood.json")
        saving = before_index.run(save)
        in_gc = Halt(web, number)
        collecting = in_gc.run(partial(collect, url))
        was_held = collecting.is_alive()
        before_index.go.set()
        saving.join()
        in_gc.go.set()
        collecting.join()
        save.check(has_old=has_old)
        outcomes.append(save.error is None)
        if not was_held:
            break
    assert True in outcomes
    assert False in outcomes


@pytest.mark.usefixtures("old_objects")
@pytest.mark.parametrize("has_old", [False, True])
def test_gc_runs_while_a_save_stands_before_any_of_its_requests(
    web: WebStore, has_old: bool
) -> None:
    outcomes = []
    for number in itertools.count():
        url = f"{web.url}/{number}"
        if has_old:
            cordwood.save(url, OLD)
        save = Save(url)
        in_save = Halt(web, number)
        saving = in_save.run(save)
        was_held = saving.is_alive()
        collect(url)
        in_save.go.set()
        saving.join()
        save.check(has_old=has_old)
        outcomes.append(save.error is None)
        if not was_held:
            break
    assert True in outcomes
    assert False in outcomes


def collect(url: str) -> None:
    with suppress(FileNotFoundError):
        cordwood.gc(url)


def test_gc_says_what_it_takes_before_it_looks_at_the_index_for_the_last_time(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    before = web.names("run")
    saved_at(monkeypatch, -DAY, f"{web.url}/dead", NEW)
    dead = next(name for name in web.names("dead") if name.startswith("data-"))
    web.objects[f"run/{dead}"] = web.objects[f"dead/{dead}"]
    web.requests.clear()
    assert cordwood.gc(url, dry_run=True) == [f"{url}/{dead}"]
    assert web.count("PUT") == 0
    web.requests.clear()
    assert cordwood.gc(url) == [f"{url}/{dead}"]
    assert web.names("run") == before
    methods = [
        ("DELETE" if is_delete(r) else r.method, r.key.endswith("cordwood.json"))
        for r in web.requests
    ]
    put = methods.index(("PUT", False))
    assert ("GET", True) in methods[put:]
    assert methods.index(("DELETE", False)) > len(methods) - methods[::-1].index(("GET", True)) - 1
    web.requests.clear()
    assert cordwood.gc(url) == []
    assert web.count("PUT") == 0


def test_what_a_gc_that_died_has_left_goes_with_the_next(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    before = web.names("run")
    saved_at(monkeypatch, -DAY, f"{web.url}/dead", NEW)
    dead = next(name for name in web.names("dead") if name.startswith("data-"))
    web.objects[f"run/{dead}"] = web.objects[f"dead/{dead}"]
    web.hook = lambda r: Answer(403) if is_delete(r) else None
    with pytest.raises(PermissionError):
        cordwood.gc(url)
    web.hook = lambda _: None
    assert len(web.names("run")) == len(before) + 2
    cordwood.gc(url)
    assert web.names("run") == before


@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_answer_to_the_index_is_found_out(web: WebStore, count: int) -> None:
    """The index is replaced, once or doubled, and the answer lost: the save is done."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    lost = itertools.count()

    def hook(request: Request) -> Answer | None:
        if is_put(request, "cordwood.json") and next(lost) < count:
            return Answer(0, takes_effect=1)
        return None

    web.hook = hook
    cordwood.save(url, NEW)
    web.hook = lambda _: None
    assert_trees_equal(cordwood.load(url), NEW)
    assert len(web.names("run")) == 3, "what was replaced is gone"


@pytest.mark.parametrize("status", [503, 403, 404])
def test_an_index_whose_every_answer_is_lost_is_read_back(web: WebStore, status: int) -> None:
    """A 403: the token expired between the write and its repetition."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    web.hook = lambda r: Answer(status, takes_effect=1) if is_put(r, "cordwood.json") else None
    cordwood.save(url, NEW)
    web.hook = lambda _: None
    assert_trees_equal(cordwood.load(url), NEW)
    assert len(web.names("run")) == 3


def test_a_doubled_index_is_written_once_more_at_most(web: WebStore) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    web.requests.clear()
    web.hook = lambda r: Answer(412, takes_effect=1) if is_put(r, "cordwood.json") else None
    cordwood.save(url, NEW)
    assert web.count("PUT", r"/cordwood\.json") == 1
    web.hook = lambda _: None
    assert_trees_equal(cordwood.load(url), NEW)
    assert len(web.names("run")) == 3


def test_a_store_that_ignores_conditions_is_refused(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    monkeypatch.setattr(BUCKETS, "_experience", {})
    web.obeys_conditions = False
    before = web.names("run")
    for prefix in (None, "a"):
        with pytest.raises(UnsupportedFormatError, match="conditional writes") as caught:
            cordwood.save(url, NEW, prefix=prefix)
        assert web.url in str(caught.value)
        assert web.names("run") == before
    assert_trees_equal(cordwood.load(url), OLD)
    assert cordwood.gc(url) == []


def test_a_store_that_refuses_every_condition_is_refused(web: WebStore) -> None:
    web.hook = lambda r: Answer(412) if is_put(r, ".tmp") and web.count("PUT") > 1 else None
    with pytest.raises(UnsupportedFormatError, match="conditional writes"):
        cordwood.save(f"{web.url}/run", NEW)


@pytest.mark.parametrize("form", ["any", "quoted", "bare"])
def test_stores_take_tags_with_quotes_or_without(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ceph 16 takes the ETag of a condition without its quotes alone, against the standard."""
    with web_store("s3", monkeypatch) as web:
        web.takes_tags = form
        for tree in (OLD, NEW, OLD):
            cordwood.save(f"{web.url}/run", tree)
            assert_trees_equal(cordwood.load(f"{web.url}/run"), tree)
        tags = [r.headers["if-match"] for r in web.requests if "if-match" in r.headers]
        last = tags[-1]
        assert last == (last.strip('"') if form == "bare" else f'"{last.strip(chr(34))}"')
        refused = [name for name in web.objects if name.endswith(".tmp")]
        assert refused == []


def test_a_store_without_conditions_is_refused(web: WebStore) -> None:
    web.hook = lambda r: Answer(501) if r.method == "PUT" else None
    with pytest.raises(UnsupportedFormatError, match="conditional writes"):
        cordwood.save(f"{web.url}/run", NEW)


def test_conditions_are_tried_once_for_a_store(web: WebStore) -> None:
    cordwood.save(f"{web.url}/1", OLD)
    tried = web.count("PUT", r"\.tmp")
    assert 0 < tried <= 4
    assert [name for name in web.objects if name.endswith(".tmp")] == []
    cordwood.save(f"{web.url}/2", OLD)
    cordwood.save(f"{web.url}/1", OLD, prefix="a")
    assert web.count("PUT", r"\.tmp") == tried


def test_a_bucket_where_nothing_can_be_replaced_takes_new_trees(web: WebStore) -> None:
    """A rule against overwriting hides what the store would make of the condition."""

    def hook(request: Request) -> Answer | None:
        is_refused = is_delete(request) or (request.method == "PUT" and request.key in web.objects)
        return Answer(403) if is_refused else None

    web.hook = hook
    cordwood.save(f"{web.url}/run", NEW)
    assert_trees_equal(cordwood.load(f"{web.url}/run"), NEW)


def test_prefixes_that_are_saved_at_once(web: WebStore) -> None:
    url = f"{web.url}/run"
    together = threading.Barrier(4)

    def work(number: int) -> None:
        for step in range(4):
            together.wait()
            cordwood.save(url, {"w": np.full(50, number * 10 + step)}, prefix=f"p{number}")

    in_threads(work, together=together, count=4)
    for number in range(4):
        loaded = cordwood.load(url, prefix=f"p{number}")
        assert_trees_equal(loaded, {"w": np.full(50, number * 10 + 3)})
    names = [name for name in web.names("run") if web.objects[f"run/{name}"].size]
    assert len(names) == 5, "an index, and the data; a map of the first tree alone was emptied"


def test_gc_removes_the_map_that_a_cut_off_deletion_has_left(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_at(monkeypatch, -DAY, f"{web.url}/2", OLD)
    cordwood.save(f"{web.url}/3", OLD)
    for step in ("2", "3"):
        for name in web.names(step):
            if name != "model.safetensors.index.json":
                del web.objects[f"{step}/{name}"]
    assert cordwood.gc(f"{web.url}/2", dry_run=True) != []
    assert cordwood.gc(f"{web.url}/2") == [f"{web.url}/2/model.safetensors.index.json"]
    assert web.names("2") == []
    assert cordwood.gc(f"{web.url}/3") == [], "it began less than a day ago"


def test_gc_of_a_process_that_has_not_saved_learns_the_form_of_tags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ceph 16 takes the ETag of a condition without its quotes alone."""
    with web_store("s3", monkeypatch) as web:
        web.takes_tags = "bare"
        saved_at(monkeypatch, -DAY, f"{web.url}/2", OLD)
        for name in web.names("2"):
            if name != "model.safetensors.index.json":
                del web.objects[f"2/{name}"]
        forget_stores(monkeypatch)
        assert cordwood.gc(f"{web.url}/2") == [f"{web.url}/2/model.safetensors.index.json"]
        assert web.objects == {}


def test_gc_leaves_the_map_in_a_store_without_conditional_writes(
    web: WebStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_at(monkeypatch, -DAY, f"{web.url}/2", OLD)
    for name in web.names("2"):
        if name != "model.safetensors.index.json":
            del web.objects[f"2/{name}"]
    forget_stores(monkeypatch)
    web.obeys_conditions = False
    assert cordwood.gc(f"{web.url}/2") == []
    assert web.names("2") == ["model.safetensors.index.json"]


def test_gc_leaves_a_map_that_is_not_of_packs(web: WebStore) -> None:
    """A snapshot of the Hugging Face hub has an index of that name, and no other."""
    text = b'{"weight_map": {"w": "model-00001-of-00002.safetensors"}}'
    web.put("hub/model.safetensors.index.json", text)
    assert cordwood.gc(f"{web.url}/hub") == []
    assert web.names("hub") == ["model.safetensors.index.json"]


def test_an_answer_that_is_none_is_an_error_of_the_store(web: WebStore) -> None:
    """Each request of a load is once answered with 304, though it had no condition."""
    url = f"{web.url}/run"
    cordwood.save(url, OLD)
    web.requests.clear()
    cordwood.load(url)
    count = len(web.requests)
    assert count >= 2
    for number in range(1, count + 1):
        web.requests.clear()

        def refuse(_: Request, number: int = number) -> Answer | None:
            return Answer(304) if len(web.requests) == number else None

        web.hook = refuse
        with pytest.raises(StorageError, match=url):
            cordwood.load(url)
