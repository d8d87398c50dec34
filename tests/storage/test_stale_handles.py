"""Files that another machine removes or replaces on a file server: ESTALE from any call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import FileChangedError
from cordwood.io import stale_handles
from cordwood.io.open_files import OpenDescriptor
from cordwood.io.stale_handles import retry_stale
from cordwood.storage.read_small_file import read_small_file
from tests.faults import Scenario, fail_calls

_TREES = """
import numpy as np
old = {"a": np.zeros(5000, np.uint8), "b": np.ones(3)}
new = {"a": np.ones(5000, np.uint8), "b": np.ones(3)}
"""
_LOAD = "import cordwood; found = cordwood.load(path)"
_SAVES = {
    "file": ("m.msgpack", "import cordwood; cordwood.save(path, tree)"),
    "directory": ("m", "import cordwood; cordwood.save(path, tree)"),
    "zarr": ("m", "import cordwood; cordwood.save(path, tree, format='zarr')"),
}


@pytest.mark.parametrize("what", _SAVES)
def test_a_save_opens_and_locks_again_what_another_machine_has_removed(
    tmp_path: Path, what: str
) -> None:
    name, save = _SAVES[what]
    scenario = Scenario(name, _TREES, save, _LOAD)
    retried = 0
    for outcome in fail_calls(scenario, str(tmp_path), errno.ESTALE):
        assert outcome.kept_a_tree, outcome
        # Several threads write a tree of arrays: which call a number means is not certain there.
        if what != "zarr" and outcome.fault.startswith(("open,", "flock,")):
            assert outcome.returned, outcome
        retried += outcome.returned
    assert retried >= 3


def stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Failing:
    """A function that raises ESTALE some times before it calls the real one."""

    def __init__(self, call: Callable[..., Any], times: int) -> None:
        self.call = call
        self.times = times

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise stale()
        return self.call(*args, **options)


@pytest.mark.parametrize("name", ["x.msgpack", "x.safetensors", "x.npy", "packs"])
@pytest.mark.parametrize("call", ["open", "pread", "preadv"])
def test_a_load_opens_a_replaced_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    path = tmp_path / name
    if path.suffix == ".npy":
        np.save(path, np.arange(8.0))
    else:
        cordwood.save(path, {"a": np.arange(8.0)})
    failing = Failing(getattr(os, call), 3)
    if call == "open":
        monkeypatch.setattr(
            OpenDescriptor, "open", partialmethod(OpenDescriptor.open, call=failing)
        )
    else:
        monkeypatch.setattr(os, call, failing)
    tree = cordwood.load(path)
    cordwood.verify(path)
    assert failing.times == 0 or (call == "preadv" and path.suffix == ".npy")
    assert np.array_equal(tree["a"] if type(tree) is dict else tree, np.arange(8.0))


def test_a_leaf_of_an_open_file_that_was_replaced_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save(path, {"a": np.arange(8.0)})
    with cordwood.open(path) as checkpoint:
        monkeypatch.setattr(os, "preadv", Failing(os.preadv, 1))
        with pytest.raises(FileChangedError, match=r"another machine.*open it again") as raised:
            checkpoint["a"][0]
    assert raised.value.errno == errno.ESTALE
    with cordwood.open(path) as checkpoint:
        assert checkpoint["a"][1] == 1


def test_the_attempts_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stale_handles, "_PAUSE_SECONDS", 0)
    attempts = Failing(len, 1000)
    with pytest.raises(OSError, match="Stale"):
        retry_stale(lambda: attempts([]))
    assert attempts.times == 1000 - stale_handles.MAX_ATTEMPTS
    (tmp_path / "index").write_bytes(b"x")
    monkeypatch.setattr(os, "pread", Failing(os.pread, 1))
    assert read_small_file(str(tmp_path), "index", limit_bytes=9) == b"x"
