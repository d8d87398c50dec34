"""Signals at chosen moments of a call: a handler saves, and both its tree and the call's are there.

A moment is a traced line of cordwood, in the main thread or in a thread that the call has started.
Run as a program, so that a hang ends with the stacks of all threads:

    python -m tests.signal_moments DIRECTORY < moments.json
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from tests.children import SRC

HANG_SECONDS = 100
PLACES = ("disk", "store")
CALLS = (
    *("save", "save_file", "save_async", "manager.save", "manager.wait", "manager.delete"),
    *("manager.save_at_first", "copy", "convert", "load", "manager.restore"),
    "manager.add_metrics",
)
HANDLERS = ("save", "save_async", "manager.save", "same")
INSIDE = f"{SRC}/cordwood/"


class Moment(NamedTuple):
    """A moment of a call.

    Attributes:
        call: one of CALLS.
        handler: one of HANDLERS, the call of the handler; "same": of the same path or manager.
        place: one of PLACES.
        fraction: when: 0 at the first line of the call, 1 at its last.
        is_first: True for the first call of a process, which imports what it needs.
    """

    call: str
    handler: str
    place: str
    fraction: float
    is_first: bool = False


def draw(seed: int, count: int) -> list[Moment]:
    """Return random moments; the same for the same seed."""
    rng = random.Random(seed)
    moments = []
    for _ in range(count):
        call = rng.choice(CALLS)
        place = "disk" if call == "save_file" else rng.choice(PLACES)
        first = rng.random() < 0.2
        moments.append(Moment(call, rng.choice(HANDLERS), place, rng.random(), is_first=first))
    return moments


def spread(count: int) -> list[Moment]:
    """Return moments of all calls and places, spread evenly over each call.

    Args:
        count: of the moments of each call; the handlers take turns, and half of the moments are
            in the first call of a process.
    """
    places = [(call, place) for call in CALLS for place in PLACES]
    return [
        Moment(
            call,
            HANDLERS[(number + offset) % len(HANDLERS)],
            place,
            (number + 0.5) / count,
            is_first=bool((number + offset) % 2),
        )
        for offset, (call, place) in enumerate(places)
        for number in range(count)
        if (call, place) != ("save_file", "store")
    ]


def run(moments: Iterable[Moment], folder: Path) -> list[dict[str, Any]]:
    """Run moments in another process; return what became of each.

    Raises AssertionError with the stacks of all threads if one of them hangs or fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.signal_moments", str(folder)],
        input=json.dumps(list(moments)),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{outcomes[-1:]}\n{done.stderr[-6000:]}"
    return outcomes


class Tracer:
    """A counter of the lines that cordwood runs, which sends a signal at one of them.

    The thread of that line goes on once the handler has begun.
    """

    def __init__(self, at: int) -> None:
        self.count = 0
        self.begun = threading.Event()
        self.is_sent = False
        self.where = ""
        self._at = at

    def run(self, call: Callable[[], object]) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        if event == "line" and not self.is_sent:
            self.count += 1
            if self.count == self._at:
                self._send(frame)
        return self._trace

    def _send(self, frame: FrameType) -> None:
        self.is_sent = True
        file = frame.f_code.co_filename.removeprefix(INSIDE)
        is_main = threading.get_ident() == threading.main_thread().ident
        self.where = f"{file}:{frame.f_lineno}{' (main)' if is_main else ''}"
        if is_main:
            signal.raise_signal(signal.SIGUSR1)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            self.begun.wait(HANG_SECONDS)


OLD, TREE, LAST = (
    {"w": np.full(3000, value, np.float32), "step": int(value)} for value in (0, 1, 2)
)


def same(tree: Any, other: Any) -> bool:
    return tree["step"] == other["step"] and np.array_equal(tree["w"], other["w"])


class Scenario:
    """A call, what it needs, and what is to be there afterwards.

    Args:
        moment: names the call.
        root: a new directory.
        saved: a checkpoint of TREE.
    """

    def __init__(self, moment: Moment, root: str, saved: str) -> None:
        import cordwood as cw

        self.moment = moment
        self.path = f"{root}/tree" + ".safetensors" * (moment.call == "save_file")
        self._source = f"{root}/source"
        self.other = f"{root}/other"
        self.manager: Any = None
        self._handlers_manager: Any = None
        self.pending: Any = None
        if moment.call.startswith("manager."):
            self.manager = cw.CheckpointManager(f"{root}/run")
            if moment.call != "manager.save_at_first":
                self.manager.save(1, OLD)
                self.manager.save(2, OLD)
                self.manager.wait()
            if moment.call == "manager.wait":
                self.manager.save(3, TREE)
        elif moment.call == "load" and moment.place == "store":
            cw.save(self.path, TREE)
        elif moment.call == "load":  # cordwood has imported nothing yet
            shutil.copytree(saved, self.path)
        elif moment.call in ("copy", "convert"):
            cw.save(self._source, TREE)
        if moment.handler == "manager.save":
            self._handlers_manager = cw.CheckpointManager(f"{root}/beside")

    def call(self) -> None:
        import cordwood as cw

        name = self.moment.call
        if name in ("save", "save_file"):
            cw.save(self.path, TREE)
        elif name == "save_async":
            self.pending = cw.save_async(self.path, TREE)
        elif name in ("manager.save", "manager.save_at_first"):
            self.pending = self.manager.save(3, TREE)
        elif name == "manager.wait":
            self.manager.wait()
        elif name == "manager.delete":
            self.manager.delete(1)
        elif name == "manager.add_metrics":
            self.manager.add_metrics(1, {"accuracy": 0.5})
        elif name == "manager.restore":
            assert same(self.manager.restore(2).tree, OLD)
        elif name == "load":
            tree = cw.load(self.path)
            assert same(tree, TREE) or same(tree, LAST)
        elif name == "copy":
            cw.copy(self._source, self.path)
        else:
            cw.convert(self._source, self.path)

    def handle(self) -> None:
        import cordwood as cw

        kind, manager = self.moment.handler, self._handlers_manager
        if kind == "same" and self.manager is not None:
            kind, manager = "manager.save", self.manager
        if kind == "manager.save":
            pending = manager.save(3, LAST)
            assert pending is not None
            pending.wait()
        elif kind == "save_async":
            cw.save_async(self.other, LAST).wait()
        else:
            cw.save(self.path if kind == "same" else self.other, LAST)

    def check(self, *, is_refused: bool) -> None:
        import cordwood as cw

        name, kind = self.moment.call, self.moment.handler
        if self.pending is not None:
            self.pending.wait()
        is_shared = kind == "same"
        if self.manager is not None:
            self.manager.wait()
            steps = self.manager.steps()
            assert (1 in steps) == (name not in ("manager.delete", "manager.save_at_first")), steps
            if name == "manager.add_metrics":
                assert self.manager.best("accuracy") == 1
            if name in ("manager.save", "manager.save_at_first", "manager.wait") or is_shared:
                tree = self.manager.restore(3).tree
                assert same(tree, TREE) or (is_shared and same(tree, LAST))
        elif not is_shared:
            assert same(cw.load(self.path), TREE)
        if kind == "manager.save":
            assert same(self._handlers_manager.restore(3).tree, LAST)
        elif not is_shared:
            assert same(cw.load(self.other), LAST)
        elif self.manager is None:
            tree = cw.load(self.path)
            assert same(tree, LAST) or (not is_refused and same(tree, TREE))


def _interrupt(scenario: Scenario, at: int) -> tuple[Tracer, list[str]]:
    """Run the call of a scenario, with a signal at a line; return what was traced and refused."""
    tracer, refused = Tracer(at), []
    errors: list[BaseException] = []

    def handler(number: int, frame: object) -> None:
        tracer.begun.set()
        try:
            scenario.handle()
        except BaseException as e:  # noqa: BLE001  (raised below: a handler's would end the call)
            errors.append(e)

    signal.signal(signal.SIGUSR1, handler)
    try:
        tracer.run(scenario.call)
    except FileExistsError as e:
        # The handler has saved before the call began, and `copy` and `convert` replace nothing.
        if scenario.moment.handler != "same":
            raise
        refused.append(f"{type(e).__name__}: {e}")
    if at and not tracer.is_sent:  # the call had fewer lines than at the first time
        signal.raise_signal(signal.SIGUSR1)
    if errors:
        raise errors[0]
    return tracer, refused


class Runner:
    """A process that runs moments, and knows how many lines each call has."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lines: dict[tuple[str, str, bool], int] = {}
        self._number = 0
        self._saved = f"{folder}/saved"
        self._in_fork(self._save)

    def _save(self) -> None:
        import cordwood as cw

        cw.save(self._saved, TREE)

    def root(self, place: str) -> str:
        self._number += 1
        if place == "store":
            return f"memory://moments-{os.getpid()}-{self._number}/root"
        return tempfile.mkdtemp(dir=self._folder)

    def lines_of(self, moment: Moment) -> int:
        key = moment.call, moment.place, moment.is_first
        if key not in self._lines:
            moment = moment._replace(handler="save")
            if moment.is_first:
                self._lines[key] = self._in_fork(lambda: self._run(moment, 0)["lines"])
            else:
                for _ in range(2):  # the first time imports
                    tracer, _ = _interrupt(
                        Scenario(moment, self.root(moment.place), self._saved), 0
                    )
                self._lines[key] = tracer.count
        return self._lines[key]

    def outcome(self, moment: Moment) -> dict[str, Any]:
        at = 1 + int(moment.fraction * self.lines_of(moment))
        if not moment.is_first:
            return self._run(moment, at)
        outcome: dict[str, Any] = self._in_fork(lambda: self._run(moment, at))
        return outcome

    def _run(self, moment: Moment, at: int) -> dict[str, Any]:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        scenario = Scenario(moment, self.root(moment.place), self._saved)
        tracer, refused = _interrupt(scenario, at)
        if at:
            scenario.check(is_refused=bool(refused))
        faulthandler.cancel_dump_traceback_later()
        return {"moment": moment, "lines": tracer.count, "at": tracer.where, "refused": refused}

    def _in_fork(self, work: Callable[[], Any]) -> Any:
        """Call a function in a process in which cordwood has done nothing yet."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                with os.fdopen(writing, "w") as file:
                    json.dump(work(), file)
                code = 0
            except BaseException:  # noqa: BLE001  (the parent fails)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as file:
            text = file.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child of a first call ended with {status}"
        return json.loads(text)


def main() -> None:
    moments = [Moment(*each) for each in json.load(sys.stdin)]
    runner = Runner(sys.argv[1])
    # First calls first: their processes are forked from one in which cordwood has no threads.
    for moment in sorted(moments, key=lambda each: not each.is_first):
        print(f"{moment}", file=sys.stderr, flush=True)
        print(json.dumps(runner.outcome(moment)), flush=True)


if __name__ == "__main__":
    main()
