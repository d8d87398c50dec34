"""A mirror: what is copied when, what is waited for, and what is restored from it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood import CheckpointManager, KeepBest, Mirror, StepReader, load, verify
from cordwood.errors import CorruptionError, StepError, UnsupportedFormatError
from cordwood.manager import manager as manager_module
from cordwood.results import ManagerProblem
from cordwood.testing import assert_trees_equal
from cordwood.threads import wait_logger
from tests.storage.stores import new_url
from tests.storage.web_stores import Answer, Request, WebStore, web_store

KINDS = ("path", "memory", "s3", "moto")


def tree_of(step: int) -> dict[str, Any]:
    return {"frozen": np.arange(3000.0), "w": np.full((3, 5), step, np.float32), "step": step}


class Loader:
    """An item with a state, as a data iterator has it."""

    def __init__(self) -> None:
        self.position = 0

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


@pytest.fixture(params=KINDS)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the root of a mirror, where nothing is yet."""
    if request.param == "path":
        yield str(tmp_path / "safe" / "mirror")
        return
    with new_url(request.param, monkeypatch) as url:
        yield f"{url}/mirror"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebStore]:
    with web_store("s3", monkeypatch) as store:
        yield store


def damage(step: Path) -> None:
    """Change a bit of the data of a step, in a file that no other step links."""
    pack = min(step.glob("data-*"), key=lambda path: path.stat().st_nlink)
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)


def test_steps_are_copied_complete_and_kept_by_policies_of_the_mirror(
    tmp_path: Path, target: str
) -> None:
    with CheckpointManager(tmp_path / "run", keep=1, mirror=Mirror(target, keep=2)) as manager:
        for step in range(4):
            manager.save(step, tree_of(step))
            manager.wait()
            assert manager.mirrored == step
        assert manager.problems == []
        assert manager.steps() == [3]
    assert StepReader(target).steps() == [2, 3]
    for step in (2, 3):
        assert verify(f"{target}/{step}").unverified_bytes == 0
        assert_trees_equal(load(f"{target}/{step}"), tree_of(step))


def test_a_lost_root_is_restored_from_the_mirror_and_filled_again(
    tmp_path: Path, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, loader = tmp_path / "run", Loader()
    ema = {"ema": np.full(7, 0.1)}
    with CheckpointManager(root, mirror=Mirror(target)) as manager:
        for step in (10, 20):
            loader.position = step * 3
            manager.save(
                step,
                tree_of(step),
                metrics={"loss": 1 / step, "odd": float("nan")},
                extras={"epoch": step},
                items={"ema": ema, "loader": loader},
            )
            manager.wait()  # else the first may be skipped
    shutil.rmtree(root)
    loader = Loader()
    caplog.clear()
    with CheckpointManager(root, mirror=Mirror(target)) as manager:
        restored = manager.restore(like=tree_of(0), items={"ema": None, "loader": loader})
        assert restored is not None
        assert restored.step == 20
        assert_trees_equal(restored.tree, tree_of(20))
        assert_trees_equal(restored.items["ema"], ema)
        assert restored.metrics["loss"] == 1 / 20
        assert np.isnan(restored.metrics["odd"])
        assert restored.extras == {"epoch": 20}
        assert loader.position == 60
        (line,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert line == (
            f"step 20 was restored from the mirror {target}/20: the root holds no whole step"
        )
        assert_trees_equal(manager.restore(10).tree, tree_of(10))
        manager.save(30, tree_of(30))
        manager.wait()
        assert manager.steps() == [30]
        assert manager.problems == []
    assert StepReader(target).steps() == [10, 20, 30]


@pytest.mark.parametrize("kind", ["memory", "moto"])
def test_a_root_in_an_object_store_has_a_mirror(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_url(kind, monkeypatch) as url:
        root = f"{url}/run"
        for mirror in (Mirror(tmp_path / kind, keep=2), Mirror(f"{url}/mirror", keep=2)):
            with CheckpointManager(root, keep=1, mirror=mirror) as manager:
                for step in (1, 2, 3):
                    manager.save(step, tree_of(step))
                    manager.wait()
                assert (manager.mirrored, manager.problems) == (3, [])
                assert (manager.steps(), StepReader(mirror.root).steps()) == ([3], [2, 3])
            CheckpointManager(root).delete(3)  # the root is lost
            with CheckpointManager(root, mirror=mirror) as manager:
                restored = manager.restore(required=True)
                assert restored.step == 3
                assert_trees_equal(restored.tree, tree_of(3))
                manager.save(4, tree_of(4))
                manager.wait()
                assert verify(f"{mirror.root}/4").unverified_bytes == 0
                assert manager.delete_after(0) == [3, 4]
                manager.wait()
                assert (manager.mirrored, manager.problems) == (None, [])
            assert StepReader(mirror.root).steps() == StepReader(root).steps() == []


def test_a_damaged_step_is_restored_from_the_mirror(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, target = tmp_path / "run", tmp_path / "mirror"
    with CheckpointManager(root, mirror=Mirror(target)) as manager:
        for step in (1, 2):
            manager.save(step, tree_of(step))
            manager.wait()
    damage(root / "2")
    for asks_for_number in (False, True):
        caplog.clear()
        manager = CheckpointManager(root, mirror=Mirror(target))
        if asks_for_number:
            restored = manager.restore(2)
        else:
            with pytest.warns(RuntimeWarning, match="run/2: step 2 is passed over: damaged"):
                restored = manager.restore(required=True)
        assert_trees_equal(restored.tree, tree_of(2))
        (line,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert line.startswith(f"step 2 was restored from the mirror {target}/2: that of the root")
    damage(target / "2")
    manager = CheckpointManager(root, mirror=Mirror(target))
    with pytest.warns(RuntimeWarning, match="is passed over: damaged") as warned:
        assert manager.restore(required=True).step == 1
    assert len(warned) == 2  # of both places
    damage(root / "1")
    damage(target / "1")
    manager = CheckpointManager(root, mirror=Mirror(target))
    with (
        pytest.warns(RuntimeWarning, match="is passed over: damaged"),
        pytest.raises(CorruptionError, match="no step can be restored") as caught,
    ):
        manager.restore()
    for path in (root / "1", root / "2", target / "1", target / "2"):
        assert f"{path}/data-" in str(caught.value)


def test_an_index_that_cannot_be_read_is_taken_from_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from cordwood.storage import local_storage

    root, target = tmp_path / "run", tmp_path / "mirror"
    with CheckpointManager(root, mirror=Mirror(target)) as manager:
        manager.save(1, tree_of(1))
    real = local_storage.LocalStorage.read_index

    def read_index(self: Any) -> bytes | None:
        if str(root) in str(vars(self)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(root))
        return real(self)

    monkeypatch.setattr(local_storage.LocalStorage, "read_index", read_index)
    manager = CheckpointManager(root, mirror=Mirror(target))
    assert_trees_equal(manager.restore(required=True).tree, tree_of(1))
    assert_trees_equal(manager.restore(1).tree, tree_of(1))


def test_which_steps_are_copied(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror", every=20)
    with CheckpointManager(tmp_path / "run", mirror=mirror) as manager:
        for step in range(0, 50, 10):
            manager.save(step, tree_of(step))
            manager.wait()
    assert StepReader(mirror.root).steps() == [0, 20, 40]


def test_metrics_that_came_later_count_for_the_policies_of_the_mirror(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror", keep=KeepBest(1, "accuracy"))
    with CheckpointManager(tmp_path / "run", mirror=mirror) as manager:
        for step, accuracy in ((1, 0.1), (2, 0.9)):
            manager.save(step, tree_of(step))
            manager.wait()
            manager.add_metrics(step, {"accuracy": 1 - accuracy})
            manager.wait()
        manager.save(3, tree_of(3))
        manager.wait()
        assert manager.problems == []
    reader = StepReader(mirror.root)
    assert reader.steps() == [2, 3]
    assert reader.metrics(2) == {"accuracy": pytest.approx(0.1)}


def test_metrics_that_are_replaced_are_replaced_in_the_mirror_too(
    tmp_path: Path, target: str
) -> None:
    with CheckpointManager(tmp_path / "run", mirror=Mirror(target)) as manager:
        manager.save(1, tree_of(1), metrics={"accuracy": 0.1, "loss": 1.0})
        manager.wait()
        manager.add_metrics(1, {"accuracy": 0.9}, overwrite=True)
        manager.wait()
        assert manager.problems == []
        assert StepReader(target).metrics(1) == {"accuracy": 0.9, "loss": 1.0}
    assert_trees_equal(load(f"{target}/1"), tree_of(1))


def test_a_deletion_leaves_the_newest_step_mirrored(tmp_path: Path, bucket: WebStore) -> None:
    """It ends the copy that is running, which must begin again."""
    mirror = Mirror(f"{bucket.url}/run")
    with CheckpointManager(tmp_path / "run", mirror=mirror) as manager:
        manager.save(10, tree_of(10))
        manager.wait()
        manager.save(20, tree_of(20))
        manager.delete(10)
        manager.wait()
        assert manager.mirrored == 20
        manager.save(30, tree_of(30))
        manager.wait()
        manager.delete(20)
        manager.wait()
        assert manager.mirrored == 30
        assert manager.problems == []
    assert StepReader(mirror.root).steps() == [30]


def test_saves_do_not_wait_for_a_slow_mirror_which_skips_to_the_newest_step(
    tmp_path: Path, bucket: WebStore
) -> None:
    copying, go_on = threading.Event(), threading.Event()

    def hook(request: Request) -> Answer | None:
        if request.method in ("PUT", "CREATE_UPLOAD") and ".data/" in request.key:
            copying.set()
            return Answer(None, delay=go_on)
        return None

    bucket.hook = hook
    mirror = Mirror(f"{bucket.url}/run")
    with CheckpointManager(tmp_path / "run", keep=1, mirror=mirror) as manager:
        manager.save(1, tree_of(1))
        assert copying.wait(60)
        for step in range(2, 6):
            pending = manager.save(step, tree_of(step))
            assert pending is not None
            pending.wait()
        assert manager.mirrored is None
        go_on.set()
        manager.wait()
        assert manager.mirrored == 5
        assert manager.problems == []
    assert StepReader(mirror.root).steps() == [1, 5]


def test_the_wait_for_a_slow_mirror_has_a_bound_and_its_copy_is_resumed(
    tmp_path: Path, bucket: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def hook(request: Request) -> Answer | None:
        is_data = request.method in ("PUT", "CREATE_UPLOAD") and ".data/" in request.key
        return Answer(None, delay=go_on) if is_data else None

    bucket.hook = hook
    problems: list[ManagerProblem] = []
    mirror = Mirror(f"{bucket.url}/run", wait_seconds=0)
    with CheckpointManager(tmp_path / "run", mirror=mirror, on_problem=problems.append) as manager:
        manager.save(1, tree_of(1))
        manager.wait()
        (problem,) = problems
        assert isinstance(problem.error, TimeoutError)
        assert problem.what == f"the mirror {mirror.root}: it is not waited for any longer"
    assert manager.problems == problems
    assert f"{tmp_path / 'run'}: {problem}" in caplog.text
    go_on.set()
    with CheckpointManager(tmp_path / "run", mirror=Mirror(mirror.root)) as manager:
        assert manager.restore(required=True).step == 1
        manager.wait()
        assert manager.mirrored == 1
    assert_trees_equal(load(f"{mirror.root}/1"), tree_of(1))


def test_after_an_error_in_the_block_its_end_waits_for_the_mirror_for_a_bounded_time(
    tmp_path: Path,
    bucket: WebStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(manager_module, "ERROR_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 1e-9)  # the first time that it waits
    go_on = threading.Event()
    bucket.hook = lambda request: Answer(None, delay=go_on) if request.method == "PUT" else None
    mirror = Mirror(f"{bucket.url}/run", wait_seconds=1e6)
    manager = CheckpointManager(tmp_path / "run", mirror=mirror)

    def train() -> None:
        with manager:
            manager.save(1, tree_of(1))
            raise KeyError("of the loop")

    with pytest.raises(KeyError):
        train()
    go_on.set()
    (problem,) = manager.problems
    assert isinstance(problem.error, TimeoutError)
    assert f"waiting for the copy to the mirror {mirror.root}, for 0 s more at most" in caplog.text


def test_a_failing_mirror_fails_no_save_and_catches_up(
    tmp_path: Path, bucket: WebStore, caplog: pytest.LogCaptureFixture
) -> None:
    problems: list[ManagerProblem] = []

    def on_problem(problem: ManagerProblem) -> None:
        problems.append(problem)
        raise RuntimeError("of the hook")

    mirror = Mirror(f"{bucket.url}/run")
    with CheckpointManager(tmp_path / "run", mirror=mirror, on_problem=on_problem) as manager:
        manager.save(1, tree_of(1))
        manager.wait()
        bucket.hook = lambda request: Answer(403) if request.method != "LIST" else None
        manager.save(2, tree_of(2))
        manager.wait()
        assert manager.steps() == [1, 2]
        (problem,) = problems
        assert problem.step == 2
        assert problem.what == f"the mirror {mirror.root}: step 2 could not be copied to it"
        assert "403" in str(problem)
        assert "on_problem failed" in caplog.text
        bucket.hook = lambda _: None
        manager.save(3, tree_of(3))
        manager.wait()
        assert manager.mirrored == 3
        assert manager.problems == problems
    assert StepReader(mirror.root).steps() == [1, 3]


def test_nothing_is_begun_anew_while_the_mirror_cannot_be_read(
    tmp_path: Path, bucket: WebStore
) -> None:
    mirror = Mirror(f"{bucket.url}/run")
    with CheckpointManager(tmp_path / "run", mirror=mirror) as manager:
        manager.save(1, tree_of(1))
    bucket.hook = lambda _: Answer(403)
    manager = CheckpointManager(tmp_path / "run", mirror=mirror)
    assert manager.restore(required=True).step == 1  # the root has it
    (problem, *_) = manager.problems
    assert "it cannot be read, and is not restored from" in problem.what
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StepError, match=r"holds no step to restore, and the mirror .* leave out"):
        CheckpointManager(tmp_path / "run", mirror=mirror).restore()
    assert CheckpointManager(tmp_path / "run").restore() is None  # the remedy: to begin anew


def test_going_back_deletes_in_the_mirror_too(tmp_path: Path) -> None:
    root, mirror = tmp_path / "run", Mirror(tmp_path / "mirror")
    with CheckpointManager(root, mirror=mirror) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, tree_of(step))
            manager.wait()
        manager.delete(1)
        shutil.rmtree(root / "4")  # the mirror has it still
        assert manager.delete_after(2) == [3, 4]
        assert StepReader(mirror.root).steps() == manager.steps() == [2]
        manager.save(3, tree_of(30))
        manager.wait()
    assert_trees_equal(load(tmp_path / "mirror" / "3"), tree_of(30))


def test_a_mirror_that_is_ahead_of_a_new_run_is_a_problem(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror")
    with CheckpointManager(tmp_path / "old", mirror=mirror) as manager:
        manager.save(100, tree_of(100))
    with CheckpointManager(tmp_path / "new", mirror=mirror) as manager:
        manager.save(1, tree_of(1))
        manager.wait()
        (problem,) = manager.problems
        assert "step 100 is newer than step 1, which was saved now" in str(problem)
        manager.delete_after(1)  # the remedy
        manager.save(2, tree_of(2))
        manager.wait()
        assert manager.mirrored == 2
        assert len(manager.problems) == 1


def test_a_mirror_that_has_the_step_of_another_run_is_a_problem(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror")
    with CheckpointManager(tmp_path / "old", mirror=mirror) as manager:
        manager.save(10, tree_of(100))
    with CheckpointManager(tmp_path / "new", mirror=mirror) as manager:
        manager.save(10, tree_of(1))
        manager.wait()
        (problem,) = manager.problems
        assert problem.step == 10
        assert isinstance(problem.error, FileExistsError)
        assert "another one than that to copy" in str(problem)
    assert_trees_equal(load(tmp_path / "mirror" / "10"), tree_of(100))


def test_files_of_others_in_the_mirror_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "mirror"
    (target / "2").mkdir(parents=True)
    (target / "2" / "notes").write_text("mine")
    (target / "README").write_text("mine")
    with CheckpointManager(tmp_path / "run", mirror=Mirror(target, keep=1)) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, tree_of(step))
            manager.wait()
            if step == 3:
                (target / "3" / "log").write_text("mine")
        assert "3 was deleted, except log, which cordwood did not write" in caplog.text
        assert [problem.step for problem in manager.problems] == [2]
    assert sorted(os.listdir(target)) == ["2", "3", "4", "README"]
    assert os.listdir(target / "2") == ["notes"]
    assert os.listdir(target / "3") == ["log"]


@pytest.mark.parametrize("inner", ["", "mirror"])
def test_a_mirror_within_the_root_is_refused(tmp_path: Path, inner: str) -> None:
    with pytest.raises(ValueError, match="expected two places, neither of them within the other"):
        CheckpointManager(tmp_path, mirror=Mirror(tmp_path / inner))
    if inner:
        with pytest.raises(ValueError, match="expected two places"):
            CheckpointManager(tmp_path / inner, mirror=Mirror(tmp_path))


def test_wrong_arguments_of_a_mirror() -> None:
    with pytest.raises(TypeError, match="every: expected a number of steps or a policy"):
        Mirror("m", every="often")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep: expected a number of steps or a policy"):
        Mirror("m", keep="most")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wait_seconds: expected at least 0, found -1"):
        Mirror("m", wait_seconds=-1)
    with pytest.raises(TypeError, match="wait_seconds='long': expected a number of seconds"):
        Mirror("m", wait_seconds="long")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFormatError, match="a web server lists no steps"):
        CheckpointManager("run", mirror=Mirror("https://example.com/run"))


def test_a_preempted_job_waits_for_the_mirror_no_longer_than_it_has(
    tmp_path: Path, bucket: WebStore
) -> None:
    go_on = threading.Event()

    def hook(request: Request) -> Answer | None:
        return Answer(None, delay=go_on) if request.method == "PUT" else None

    bucket.hook = hook
    mirror = Mirror(f"{bucket.url}/run", wait_seconds=1e6)
    with CheckpointManager(
        tmp_path / "run", mirror=mirror, save=100, preemption_seconds=0.5
    ) as manager:
        os.kill(os.getpid(), signal.SIGTERM)
        manager.save(7, tree_of(7))
        assert manager.preempted
    assert manager.steps() == [7]
    (problem,) = manager.problems
    assert isinstance(problem.error, TimeoutError)
    go_on.set()


_KILLED = """
    import os, signal, sys
    import numpy as np
    from cordwood import CheckpointManager, Mirror
    from cordwood.storage import syscalls

    root, mirror, when = sys.argv[1:]

    class Killing(syscalls.SystemCalls):
        def replace(self, source, target):
            if when == "before the index" and target == f"{mirror}/3/cordwood.json":
                os.kill(os.getpid(), signal.SIGKILL)
            super().replace(source, target)
            if when == "after the index" and target == f"{mirror}/3/cordwood.json":
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "in a deletion" and target.endswith(".deleted") and mirror in target:
                os.kill(os.getpid(), signal.SIGKILL)

    with syscalls.override(Killing()):
        with CheckpointManager(root, mirror=Mirror(mirror, keep=2)) as manager:
            for step in range(1, 4):
                tree = {"w": np.full(5000, step)}
                manager.save(step, tree)
                manager.wait()
"""


@pytest.mark.parametrize("when", ["before the index", "after the index", "in a deletion"])
def test_a_kill_leaves_whole_steps_in_the_mirror_and_the_next_run_goes_on(
    tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    root, target = tmp_path / "run", tmp_path / "mirror"
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_KILLED), str(root), str(target), when],
        check=False,
        timeout=400,
    )
    assert child.returncode == -signal.SIGKILL
    assert StepReader(root).steps() == [1, 2, 3]
    complete = {"before the index": [1, 2], "after the index": [1, 2, 3]}.get(when, [2, 3])
    assert StepReader(target).steps() == complete
    for step in complete:
        assert verify(target / str(step)).unverified_bytes == 0
    with CheckpointManager(root, mirror=Mirror(target, keep=2)) as manager:
        assert manager.restore(required=True).step == 3
        manager.wait()
        assert manager.mirrored == 3
        manager.save(4, {"w": np.full(5000, 4)})
        manager.wait()
        assert manager.problems == []
    assert StepReader(target).steps() == [3, 4]
    assert sorted(os.listdir(target)) == ["3", "4"]
    is_resumed = "copied step 3 to the mirror: 0 B copied, 43.1 KiB were there" in caplog.text
    assert is_resumed == (when == "before the index")
