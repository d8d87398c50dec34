"""SIGTERM: the next save saves, in time, and says that the loop is to end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cordwood import CheckpointManager, EverySteps
from cordwood.errors import PendingSaveError
from cordwood.policies import OnPreemption
from cordwood.processes.preemption import PreemptionNotice
from cordwood.storage import write_files

TREE = {"w": np.zeros(3)}


def send_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_that_receives_sigterm(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with CheckpointManager(tmp_path, save=EverySteps(100), preemption_seconds=300) as manager:
        for step in range(300):
            if step == 142:
                send_sigterm()
            pending = manager.save(step, TREE)
            if manager.preempted:
                break
        assert step == 142
        assert pending is not None
        assert pending.done
        assert manager.steps() == [0, 100, 142]
        assert manager.save(143, TREE) is None  # once is enough
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_save_that_goes_on_is_finished_where_there_is_no_time_for_another(tmp_path: Path) -> None:
    go = threading.Event()
    original = write_files.fill_file

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go.wait(60)
        return original(*arguments, **named)

    with CheckpointManager(tmp_path, save=EverySteps(10), preemption_seconds=200) as manager:
        manager.save(0, TREE)
        manager.wait()
        manager._queue.last_seconds = 150.0
        with patch("cordwood.storage.local_transaction.fill_file", slow):
            manager.save(10, TREE)
            send_sigterm()
            finish = manager._saver.finish_in_time

            def finish_once_it_waits() -> None:
                go.set()
                finish()

            with patch.object(manager._saver, "finish_in_time", finish_once_it_waits):
                assert manager.save(11, TREE) is None
        assert manager.preempted
        assert manager.steps() == [0, 10]


def test_a_preempted_manager_says_that_no_time_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    original = write_files.fill_file

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go.wait(60)
        return original(*arguments, **named)

    with CheckpointManager(tmp_path, preemption_seconds=0.05) as manager:
        with patch("cordwood.storage.local_transaction.fill_file", slow):
            send_sigterm()
            manager.save(1, TREE)
            assert manager.preempted
            assert "the job has been told to end, and " in caplog.text
            assert "still being saved" in caplog.text
            go.set()
        manager.wait()
    assert manager.steps() == [1]


def test_a_handler_that_was_there_is_called() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        notice = PreemptionNotice()
        notice.listen()
        assert notice.received_at is None
        send_sigterm()
        assert notice.received_at is not None
        assert calls == [signal.SIGTERM]
        notice.stop()
        send_sigterm()
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def run(code: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in which SIGTERM ends the process unless a handler is installed."""
    start = (
        "import os, signal, sys, numpy as np, cordwood\n"
        "from cordwood import CheckpointManager\n"
        "T, root = {'w': np.zeros(3)}, sys.argv[1]\n"
        "def send_sigterm(): os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code), str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_signal_while_the_block_is_left_does_not_cut_the_last_save_off(tmp_path: Path) -> None:
    done = run(
        """
        def on_save(report): send_sigterm()
        with CheckpointManager(root, preemption_seconds=300, on_save=on_save) as manager:
            manager.save(1, T)
        print("never", flush=True)
        """,
        tmp_path,
    )
    # The save has ended; and nobody has heeded the signal, so it ends the program after that.
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert CheckpointManager(tmp_path).steps() == [1]


def test_a_signal_that_a_save_has_heeded_does_not_end_the_program(tmp_path: Path) -> None:
    done = run(
        """
        with CheckpointManager(root, preemption_seconds=300) as manager:
            send_sigterm()
            manager.save(1, T)
        print(manager.preempted)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_signal_after_the_last_save_is_known_once_the_manager_is_closed(tmp_path: Path) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        manager = CheckpointManager(tmp_path, preemption_seconds=300)
        send_sigterm()
        assert manager.preempted
        manager.close()
        assert manager.preempted
        assert calls == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "end",
    [
        "del m",
        "m.close()",
        "n = CheckpointManager(root, preemption_seconds=300); m.close(); n.close()",
    ],
)
def test_a_deleted_manager_leaves_the_signal_to_others(tmp_path: Path, end: str) -> None:
    make = "m = CheckpointManager(root, preemption_seconds=300)"
    code = f"{make}\n{end}\nsend_sigterm()\nprint('never')"
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr


def test_handlers_above_and_below_are_called_once_each() -> None:
    calls: list[str] = []
    first = signal.signal(signal.SIGTERM, lambda *_: calls.append("below"))
    try:
        one, other = PreemptionNotice(), PreemptionNotice()
        one.listen()
        ours = signal.getsignal(signal.SIGTERM)
        assert callable(ours)

        def above(number: int, frame: Any) -> None:
            calls.append("above")
            ours(number, frame)

        signal.signal(signal.SIGTERM, above)
        other.listen()
        send_sigterm()
        assert calls == ["above", "below"]
        assert one.received_at is not None
        assert other.received_at is not None
        one.stop()
        other.stop()
        assert signal.getsignal(signal.SIGTERM) == above
        send_sigterm()
        assert calls == ["above", "below"] * 2
    finally:
        signal.signal(signal.SIGTERM, first)


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT])
def test_an_earlier_failure_costs_no_last_save(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path, preemption_seconds=300)
    with manager:
        with patch(
            "cordwood.storage.local_transaction.fill_file", side_effect=OSError(code, "broken")
        ):
            pending = manager.save(10, TREE)
            assert pending is not None
            while not pending.done:
                time.sleep(0.01)
        send_sigterm()
        with pytest.raises(PendingSaveError, match="the save of step 10 in the background failed"):
            manager.save(11, TREE)
        assert manager.preempted
    assert manager.steps() == [11]
    assert "step 11 is saved all the same: the job is to end" in caplog.text
    assert caplog.text.count("all the same") == 1


def test_a_failed_last_save_is_reported(tmp_path: Path) -> None:
    failing = patch(
        "cordwood.storage.local_transaction.fill_file", side_effect=OSError(110, "slow")
    )
    with CheckpointManager(tmp_path, preemption_seconds=300) as manager, failing:
        send_sigterm()
        with pytest.raises(TimeoutError, match="Connection timed out while"):
            manager.save(1, TREE)
    assert manager.steps() == []


def test_what_would_never_save_is_an_error(tmp_path: Path) -> None:
    for policy in (OnPreemption(), EverySteps(10) | OnPreemption()):
        with pytest.raises(ValueError, match=r"save: OnPreemption\(\) needs preemption_seconds="):
            CheckpointManager(tmp_path, save=policy)
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="preemption_seconds: expected more than 0, found"):
            CheckpointManager(tmp_path, preemption_seconds=seconds)
    with CheckpointManager(tmp_path, save=OnPreemption(), preemption_seconds=300) as manager:
        assert manager.save(1, TREE) is None
        send_sigterm()
        assert manager.save(2, TREE) is not None


def test_only_the_main_thread_can_listen(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def listen() -> None:
        try:
            CheckpointManager(tmp_path, preemption_seconds=1)
        except RuntimeError as e:
            errors.append(e)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert "SIGTERM can only be taken in the main thread" in str(errors[0])


def test_preempted_is_true_as_soon_as_the_signal_has_come(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, save=EverySteps(100), preemption_seconds=300) as manager:
        manager.save(0, TREE)
        for batch in range(100):  # an evaluation
            if batch == 7:
                send_sigterm()
            if manager.preempted:
                break
        assert batch == 7
        assert manager.save(1, TREE) is not None  # whatever the policy says
    assert manager.steps() == [0, 1]


def test_a_step_is_saved_in_the_middle_of_an_evaluation(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, save=EverySteps(100), preemption_seconds=300) as manager:
        manager.save(0, TREE)
        ended = []
        for batch in range(100):
            if batch == 7:
                send_sigterm()
            if manager.save_if_preempted(3, TREE, metrics={"loss": 1.0}, extras={"batch": batch}):
                ended.append(batch)
                break
        assert ended == [7]
        assert manager.steps() == [0, 3]  # it is committed
        assert manager.preempted
        assert manager.save_if_preempted(3, TREE, metrics={"loss": 1.0}, extras={"batch": 7})
        assert manager.save_if_preempted(4, TREE)  # once is enough
    assert manager.steps() == [0, 3]
    restored = manager.restore()
    assert restored is not None
    assert restored.extras == {"batch": 7}


def test_a_signal_in_the_middle_of_a_save_is_acted_on_by_that_save(tmp_path: Path) -> None:
    class TellsPolicy(EverySteps):
        def why(self, moment: Any) -> str | None:
            send_sigterm()
            return super().why(moment)

    with CheckpointManager(tmp_path, save=TellsPolicy(100), preemption_seconds=300) as manager:
        manager.save(7, TREE)
        assert manager.preempted
        assert manager.steps() == [7]


def test_a_signal_that_was_seen_and_not_acted_on_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, save=EverySteps(100), preemption_seconds=300) as manager:
        manager.save(100, TREE)
        send_sigterm()
        assert manager.preempted
    assert "SIGTERM came, and no save has acted on it: the newest step is 100" in caplog.text


def test_a_manager_that_does_not_handle_the_signal_says_so(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(ValueError, match="pass preemption_seconds= to CheckpointManager"):
        manager.save_if_preempted(1, TREE)
    assert not manager.preempted
