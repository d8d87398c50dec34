"""A save of one file, broken in every way; and the harness against a save that is not safe."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cordwood.errors import StorageError
from tests.faults import (
    Outcome,
    Scenario,
    cut_power,
    fail_calls,
    kill_calls,
    strace_kills,
    why_no_power_cuts,
    why_no_strace,
)

_LOAD = """
import numpy as np
from pathlib import Path
data = Path(path).read_bytes()
assert data[:4096] == data[:1] * 4096, "header"
found = {"a": np.frombuffer(data[4096:], np.uint8)}
"""

_SAVE = """
from cordwood.io.leaves_to_write import Leaves
from cordwood.storage.write_files import write_file
from cordwood.plan.file_plan import FilePlan, LeafBytes
array = tree["a"]
plan = FilePlan(4096 + array.nbytes, (LeafBytes(0, 0, array.nbytes),), 4096, lambda _: b"h" * 4096)
write_file(path, plan, Leaves([array]))
"""

_CARELESS = """
from pathlib import Path
Path(path).write_bytes(b"h" * 4096 + tree["a"].tobytes())
"""


def trees(size: int) -> str:
    return (
        "import numpy as np\n"
        "old = {'a': np.zeros(5000, np.uint8)}\n"
        f"new = {{'a': np.arange({size}, dtype=np.uint8)}}\n"
    )


SMALL = Scenario("small.bin", trees(9000), _SAVE, _LOAD)
LARGE = Scenario("large.bin", trees(10_000_001), _SAVE, _LOAD)  # O_DIRECT, fallocate, threads
CARELESS = Scenario("careless.bin", SMALL.trees, _CARELESS, _LOAD)


def check(outcomes: list[Outcome], *, at_least: int) -> None:
    for outcome in outcomes:
        assert outcome.kept_a_tree, outcome
    assert len(outcomes) >= at_least


@pytest.mark.parametrize("scenario", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
def test_a_failed_system_call_leaves_old_or_new(
    tmp_path: Path, scenario: Scenario, code: int, lasting: bool
) -> None:
    outcomes = list(fail_calls(scenario, str(tmp_path), code, lasting=lasting))
    check(outcomes, at_least=9)
    for outcome in outcomes:
        if outcome.error is not None:
            assert isinstance(outcome.error, StorageError), outcome
            assert outcome.error.errno == code
            assert str(outcome.error.filename).endswith(scenario.name)
            untouched = "what was there before is untouched" in str(outcome.error)
            assert untouched == (outcome.found == "old"), outcome
    assert {outcome.found for outcome in outcomes} == {"old", "new"}


@pytest.mark.parametrize("scenario", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("torn", [False, True], ids=["before", "torn"])
def test_the_process_ends_at_a_call(tmp_path: Path, scenario: Scenario, torn: bool) -> None:
    outcomes = list(kill_calls(scenario, str(tmp_path), torn=torn))
    check(outcomes, at_least=9)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}
    assert not any(outcome.returned for outcome in outcomes)


@pytest.mark.parametrize("scenario", [SMALL, LARGE], ids=["small", "large"])
def test_a_killed_save_leaves_old_or_new(tmp_path: Path, scenario: Scenario) -> None:
    if why := why_no_strace():
        pytest.skip(why)
    outcomes = list(strace_kills(scenario, str(tmp_path), sample=9))
    check(outcomes, at_least=7)
    assert not all(outcome.returned for outcome in outcomes)


@pytest.mark.parametrize("scenario", [SMALL, LARGE], ids=["small", "large"])
def test_the_power_is_cut_when_save_returns(tmp_path: Path, scenario: Scenario) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    check(cut_power([scenario], str(tmp_path), delays_seconds=(0.0,)), at_least=1)


def test_the_harness_sees_what_a_careless_save_loses(tmp_path: Path) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    (outcome,) = cut_power([CARELESS], str(tmp_path), delays_seconds=(0.0,))
    assert outcome.found != "new"
    assert not outcome.kept_a_tree


_SAVE_DIRECTORY = """
import os
from cordwood.storage.write_stream import write_stream
for name in ("a", "b"):
    write_stream(os.path.join(path, name), [tree["a"].tobytes()])
"""

_LOAD_DIRECTORY = """
import os
import numpy as np
from pathlib import Path
a, b = (Path(path, name).read_bytes() for name in ("a", "b"))
assert a == b, "parts of two saves"
found = {"a": np.frombuffer(a, np.uint8)}
"""

_LIST_DIRECTORY = """
import os
leftovers = sorted(set(os.listdir(path)) - {"a", "b"})
"""


def test_a_directory_of_two_files_is_found_to_be_torn(tmp_path: Path) -> None:
    """The harness tells when a checkpoint of several files is not saved as one."""
    scenario = Scenario("parts", trees(9000), _SAVE_DIRECTORY, _LOAD_DIRECTORY, _LIST_DIRECTORY)
    outcomes = list(fail_calls(scenario, str(tmp_path), errno.EIO))
    assert {outcome.found for outcome in outcomes} == {"old", "damaged", "new"}
    assert all(outcome.after == "new" and not outcome.leftovers for outcome in outcomes)
    littering = scenario._replace(save=_SAVE_DIRECTORY + "\nopen(path + '/c', 'w').close()")
    outcome = next(iter(fail_calls(littering, str(tmp_path), errno.EIO)))
    assert outcome.leftovers == ("c",)
