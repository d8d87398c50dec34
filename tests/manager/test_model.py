"""Managers against a dictionary that is assumed perfect: saves, kills, failures, clocks, damage."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import cordwood
from cordwood import (
    CheckpointManager,
    CordwoodError,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepPolicy,
    KeepWithin,
    SavedStep,
    StepError,
)
from cordwood.engine import system
from cordwood.testing.faults.systems import FailingSystem

LONG = os.environ.get("CORDWOOD_SOAK")
EXAMPLES, STEPS = (400, 60) if LONG else (80, 30)

POLICIES: list[KeepPolicy] = [
    KeepLast(1),
    KeepLast(3),
    KeepLast(2) | KeepEvery(4),
    KeepLast(1) | KeepBest(2, "loss"),
    KeepLast(1) | KeepWithin(50),
]
MANAGERS = 2
LOCK = ".steps.cordwood-lock"  # what is killed while it holds that leaves the file


class Killed(BaseException):
    """Ends a save as SIGKILL would: nothing is cleaned up."""


class Dying(system.System):
    """Ends at the Nth call, and lets nothing be done afterwards, as if the process were gone."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at
        self.died = False

    def _call(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.died = True
            raise Killed

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._call()
        return super().pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        self._call()
        super().fsync(fd)

    def replace(self, source: str, target: str) -> None:
        self._call()
        super().replace(source, target)

    def unlink(self, path: str) -> None:
        self._call()
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._call()
        super().mkdir(path)

    def rmdir(self, path: str) -> None:
        self._call()
        super().rmdir(path)


def tree_of(step: int, salt: int) -> dict[str, Any]:
    return {"w": np.full(50, step + salt / 16, np.float32), "salt": salt}


class Managers(RuleBasedStateMachine):
    """Two managers of one policy on one root, and a dictionary of what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cordwood-model-"))
        self.root = self.folder / "run"
        self.now = 1_000_000.0
        self.clock = patch("time.time", lambda: self.now)
        self.clock.start()
        self.model: dict[int, tuple[SavedStep, int]] = {}  # steps that must be whole, their salt
        self.may_be_gone: set[int] = set()  # by a deletion that was cut off, or not yet made

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: KeepPolicy) -> None:
        self.policy = policy
        self.managers = [self.manager() for _ in range(MANAGERS)]

    def manager(self) -> CheckpointManager:
        return CheckpointManager(self.root, keep=self.policy, background=False)

    def next_step(self, by: int) -> int:
        return max(self.model, default=-1) + by

    def commit(self, step: int, loss: float, salt: int) -> set[int]:
        """In the dictionary too; which steps are to go now."""
        self.model[step] = SavedStep(step, self.now, {"loss": loss}), salt
        saved = sorted(entry for entry, _ in self.model.values())
        return set(self.model) - {*self.policy.kept(saved, self.now), step}

    @rule(
        who=st.integers(0, MANAGERS - 1),
        by=st.integers(1, 3),
        loss=st.sampled_from([0.5, 1.0, 2.0, float("nan")]),
        salt=st.integers(0, 9),
    )
    def save(self, who: int, by: int, loss: float, salt: int) -> None:
        self.save_well(who, self.next_step(by), loss, salt)

    def save_well(self, who: int, step: int, loss: float, salt: int) -> None:
        """A save that ends well leaves nothing undone, by whoever that was begun."""
        self.managers[who].save(step, tree_of(step, salt), metrics={"loss": loss})
        for gone in self.commit(step, loss, salt):
            del self.model[gone]
        self.may_be_gone.clear()
        there = set(os.listdir(self.root)) - {LOCK}
        assert there == set(map(str, self.model))

    @precondition(lambda self: self.model)
    @rule(who=st.integers(0, MANAGERS - 1), back=st.integers(0, 5))
    def save_an_old_step(self, who: int, back: int) -> None:
        step = max(0, max(self.model) - back)
        manager = self.managers[who]
        try:
            pending = manager.save(step, tree_of(step, 99))
        except StepError:
            return
        # The last that it saved was that very step, and it takes this for the same save.
        assert pending is not None
        assert pending.done
        if step in set(self.model) - self.may_be_gone:
            salt = self.model[step][1]
            assert cordwood.load(self.root / str(step))["salt"] == salt

    @rule(
        who=st.integers(0, MANAGERS - 1),
        call=st.integers(1, 60),
        code=st.sampled_from([errno.ENOSPC, errno.EIO]),
        lasting=st.booleans(),
    )
    def a_call_fails(self, who: int, call: int, code: int, lasting: bool) -> None:
        step = self.next_step(1)
        failing = FailingSystem(call, code, lasting=lasting)
        with system.replaced(failing), contextlib.suppress(OSError, CordwoodError):
            self.managers[who].save(step, tree_of(step, 7), metrics={"loss": 1.0})
        self.look_for(step, 1.0, 7)

    @rule(who=st.integers(0, MANAGERS - 1), call=st.integers(1, 60))
    def a_process_is_killed(self, who: int, call: int) -> None:
        step = self.next_step(1)
        dying = Dying(call)
        with system.replaced(dying), contextlib.suppress(Killed, OSError, CordwoodError):
            self.managers[who].save(step, tree_of(step, 8), metrics={"loss": 1.0})
        self.managers[who] = self.manager()
        self.look_for(step, 1.0, 8)

    def look_for(self, step: int, loss: float, salt: int) -> None:
        """What became of a save that was broken: all or nothing."""
        if (self.root / str(step) / "cordwood.json").exists():
            self.may_be_gone |= self.commit(step, loss, salt)

    @precondition(lambda self: self.model)
    @rule(who=st.integers(0, MANAGERS - 1), delete=st.booleans())
    def the_newest_is_damaged(self, who: int, delete: bool) -> None:
        step = max(self.model)
        (file,) = (self.root / str(step)).glob("data-*")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        del self.model[step]
        for manager in self.managers:
            self.restore_newest(manager)
        if delete:
            self.managers[who].delete(step)
        else:
            self.save_well(who, step, 1.0, 11)

    @rule(seconds=st.sampled_from([1.0, 30.0, 1e6, -20.0, -1e6]))
    def the_clock_jumps(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.integers(0, MANAGERS - 1))
    def a_new_manager(self, who: int) -> None:
        self.managers[who] = self.manager()
        self.restore_newest(self.managers[who])

    @rule(who=st.integers(0, MANAGERS - 1))
    def restore(self, who: int) -> None:
        self.restore_newest(self.managers[who])

    def restore_newest(self, manager: CheckpointManager) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                found = manager.restore()
            except cordwood.CorruptionError:
                assert not set(self.model) - self.may_be_gone
                return
        if found is None:
            assert not set(self.model) - self.may_be_gone
            return
        assert found.step == max(self.model)
        entry, salt = self.model[found.step]
        assert found.tree["salt"] == salt
        assert (found.tree["w"] == tree_of(found.step, salt)["w"]).all()
        assert str(found.metrics) == str(entry.metrics)

    @invariant()
    def every_step_that_is_there_is_right(self) -> None:
        there = {
            int(entry)
            for entry in (os.listdir(self.root) if self.root.exists() else [])
            if entry.isdigit() and (self.root / entry / "cordwood.json").exists()
        }
        must = set(self.model) - self.may_be_gone
        assert must <= there, f"lost: {must - there}"
        assert there <= set(self.model), f"come back: {there - set(self.model)}"
        for step in there:
            cordwood.verify(self.root / str(step))
        for step in set(self.model) - there:
            del self.model[step]
        self.may_be_gone &= there

    def teardown(self) -> None:
        self.clock.stop()
        shutil.rmtree(self.folder)


TestManagers = Managers.TestCase
TestManagers.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
