"""cordwood beside Orbax and safetensors: the same tree of device arrays, in turns."""

from __future__ import annotations

import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bare import read_through
from benchmarks.gpu_parts.part import Results, Setting
from benchmarks.gpu_parts.tree import (
    bytes_of,
    flat,
    make_tree,
    renew,
    require_equal,
    shapes_of,
    specs_of,
)

PACKS = "cordwood, a directory"
FILE = "cordwood, a .safetensors file"
ORBAX = "orbax StandardCheckpointer"
SAFETENSORS = "safetensors.flax"
CONTENDERS = (PACKS, FILE, ORBAX, SAFETENSORS)
CALL, DONE, SAVE = "async save, call", "async save, until saved", "save"
WARM, COLD = "load from the page cache", "load with a cold page cache"

_MOST_ROUNDS = 9
_THREADS = ("loading.transfer_ring", "transfer_threads")


@contextmanager
def _changed(module: str, name: str, value: Any) -> Iterator[None]:
    """Replace a name of a module of cordwood in the block."""
    from unittest import mock

    with mock.patch(f"cordwood.{module}.{name}", value):
        yield


# Other ways to load the directory, beside the one that cordwood has chosen: pinned memory that is
# used again, and eight threads. Each is a row of the tables of loads.
WAYS_TO_LOAD: list[tuple[str, Callable[[], AbstractContextManager[Any]]]] = [
    (
        "cordwood, memory that is not pinned",
        partial(_changed, "loading.transfer_ring", "pinned_bytes", lambda *_: None),
    ),
    (
        "cordwood, new memory for each group",
        partial(_changed, "loading.transfer_ring", "copies_host_memory", lambda _: False),
    ),
    *(
        (f"cordwood, {count} threads", partial(_changed, *_THREADS, lambda count=count: count))
        for count in (4, 16)
    ),
]


class Contender(NamedTuple):
    """The public calls of a library.

    Attributes:
        save: saves a tree to a path.
        start: starts to save a tree, and returns a function that waits; None: not possible.
        load: loads a tree onto the device; its arguments are the path and the tree of types.
    """

    save: Callable[[Path, Any], Any]
    start: Callable[[Path, Any], Callable[[], Any]] | None
    load: Callable[[Path, Any], Any]


class Job:
    """The tree that is saved and loaded: its types and its device."""

    def __init__(self, setting: Setting) -> None:
        import jax

        self.setting = setting
        self.device = jax.devices()[0]
        self.shapes = shapes_of(setting.tree_bytes)
        self.size_bytes = bytes_of(self.shapes)
        self.specs = specs_of(self.shapes, self.device)


def path_of(setting: Setting, name: str) -> Path:
    """Return the path of the copy that a contender loads."""
    return setting.folder / f"saved-{CONTENDERS.index(name)}{suffix_of(name)}"


def suffix_of(name: str) -> str:
    """Return the suffix of the path that a contender saves to."""
    return ".safetensors" if name in (FILE, SAFETENSORS) else ""


def contender(name: str) -> Contender:
    """Import a library and return its calls. Raises ModuleNotFoundError if it is not installed."""
    if name == ORBAX:
        import orbax.checkpoint as ocp

        checkpointer = ocp.StandardCheckpointer()

        def start(path: Path, tree: Any) -> Callable[[], Any]:
            checkpointer.save(path, tree)
            return checkpointer.wait_until_finished

        return Contender(lambda path, tree: start(path, tree)(), start, checkpointer.restore)
    if name == SAFETENSORS:
        import safetensors.flax as st

        # save_file replaces the values of the dict that it is given: flat makes a new one.
        return Contender(
            lambda path, tree: st.save_file(flat(tree), path),
            None,
            lambda path, _: st.load_file(path),
        )
    import cordwood

    return Contender(
        cordwood.save,
        lambda path, tree: cordwood.save_async(path, tree).wait,
        lambda path, specs: cordwood.load(path, like=specs),
    )


def measure(setting: Setting, results: Results) -> None:
    """Save with each contender, check what it loads, and measure all of them in turns."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    job = Job(setting)
    tree = make_tree(job.shapes, job.device)
    results.put("tree", {"bytes": job.size_bytes, "leaves": len(flat(job.shapes))})
    present: dict[str, Contender] = {}
    for name in CONTENDERS:
        library = results.attempt(name, partial(contender, name))
        if library is not None:
            results.measure(f"equal: {name}", partial(_prepare, job, name, library, tree))
            if f"equal: {name}" in results.values:
                present[name] = library
    for title, way in WAYS_TO_LOAD:
        results.measure(f"equal: {title}", partial(_check_way, job, way, tree))
    times: dict[str, dict[str, list[float]]] = results.values.get("seconds", {})
    works = _works(job, present, tree)
    draw = random.Random(0)
    for number in range(_MOST_ROUNDS):
        for what, name in draw.sample(list(works), len(works)):
            if number and time.time() > setting.until:
                return
            _settle(job)
            seconds = results.attempt(f"{what}: {name}", works[what, name])
            for kind, value in (seconds or {}).items():
                times.setdefault(kind, {}).setdefault(name, []).append(value)
            results.put("seconds", times)


def _prepare(job: Job, name: str, library: Contender, tree: Any) -> str:
    """Save the copy that is loaded later, and compare what is loaded once, bit by bit."""
    from benchmarks.rounds import remove

    path = path_of(job.setting, name)
    if path.exists():  # of a process that died
        remove(path)
    library.save(path, renew(tree))
    require_equal(library.load(path, job.specs), tree)
    return "equal"


def _check_way(job: Job, way: Callable[[], AbstractContextManager[Any]], tree: Any) -> str:
    with way():
        require_equal(contender(PACKS).load(path_of(job.setting, PACKS), job.specs), tree)
    return "equal"


def _works(
    job: Job, present: dict[str, Contender], tree: Any
) -> dict[tuple[str, str], Callable[[], dict[str, float]]]:
    """Return the measurements: of each, the seconds by the kind of time."""
    works: dict[tuple[str, str], Callable[[], dict[str, float]]] = {}
    for name, library in present.items():
        if library.start is not None:
            works[CALL, name] = partial(_time_start, job, name, library, tree)
        works[SAVE, name] = partial(_time_save, job, name, library, tree)
        for what in (WARM, COLD):
            works[what, name] = partial(_time_load, job, name, library, what, nullcontext)
    for title, way in WAYS_TO_LOAD:
        if PACKS in present:
            for what in (WARM, COLD):
                works[what, title] = partial(_time_load, job, PACKS, present[PACKS], what, way)
    return works


def _settle(job: Job) -> None:
    """Collect garbage, write what other saves left in the page cache, and have free memory."""
    from benchmarks.memory import have_memory

    gc.collect()
    os.sync()
    have_memory(job.size_bytes)


def _new_path(job: Job, name: str) -> Path:
    return job.setting.folder / f"new-{time.monotonic_ns()}{suffix_of(name)}"


def _time_start(job: Job, name: str, library: Contender, tree: Any) -> dict[str, float]:
    from benchmarks.rounds import remove

    assert library.start is not None
    path, state = _new_path(job, name), renew(tree)
    begun = time.perf_counter()
    wait = library.start(path, state)
    call = time.perf_counter() - begun
    wait()
    done = time.perf_counter() - begun
    remove(path)
    return {CALL: call, DONE: done}


def _time_save(job: Job, name: str, library: Contender, tree: Any) -> dict[str, float]:
    from benchmarks.rounds import remove

    path, state = _new_path(job, name), renew(tree)
    begun = time.perf_counter()
    library.save(path, state)
    seconds = time.perf_counter() - begun
    remove(path)
    return {SAVE: seconds}


def _time_load(
    job: Job,
    name: str,
    library: Contender,
    what: str,
    way: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    import jax

    path = path_of(job.setting, name)
    (read_through if what == WARM else drop_from_page_cache)(files_of(path))
    with way():
        begun = time.perf_counter()
        value = library.load(path, job.specs)
        jax.block_until_ready(value)
        seconds = time.perf_counter() - begun
    del value
    return {what: seconds}


def files_of(path: Path) -> list[Path]:
    """Return a file, or all files of a directory."""
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def drop_from_page_cache(files: list[Path]) -> None:
    """Ask the system to drop files from the page cache; they must have been written to the disk."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


# The first load of a new process: first_loads.py calls it there


def load_first(name: str, setting: Setting) -> dict[str, float]:
    """Load in this process, which has loaded nothing before; return the seconds."""
    import jax
    import jax.numpy as jnp

    logging.getLogger("absl").setLevel(logging.ERROR)
    job = Job(setting)
    library = contender(name)
    jax.block_until_ready(jnp.zeros(8) + 1)  # the device is ready
    return _time_load(job, name, library, WARM, nullcontext)
