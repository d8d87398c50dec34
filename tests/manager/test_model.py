"""Managers against a dictionary that is assumed perfect: saves, kills, failures, clocks, damage."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
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
    PendingSave,
    StepReader,
)
from cordwood.errors import CorruptionError, IncompleteCheckpointError, PendingSaveError, StepError
from cordwood.policies import KeepPolicy, KeepWithin, SavedStep
from cordwood.results import Restored
from cordwood.storage import syscalls
from tests.faults.systems import FailingSystem
from tests.manager.dying import Dying, Killed

LONG = os.environ.get("CORDWOOD_SOAK")
EXAMPLES, STEPS = (400, 60) if LONG else (80, 30)

POLICIES: list[KeepPolicy] = [
    KeepLast(1),
    KeepLast(3),
    KeepLast(2) | KeepEvery(4),
    KeepLast(1) | KeepBest(2, "loss"),
    KeepLast(1) | KeepWithin(50),
]
BACKGROUND = (False, True, True)  # of each manager
LOCK = ".steps.cordwood-lock"  # what is killed while it holds that leaves the file
FOREIGN = {"cordwood.save": "{}", "Flax": "checkpoint_{}"}  # what they call a step

whos = st.integers(0, len(BACKGROUND) - 1)
picks = st.integers(0, 99)
calls = st.integers(1, 60)
codes = st.sampled_from([errno.ENOSPC, errno.EIO])


def tree_of(step: int, salt: int) -> dict[str, Any]:
    """`era` changes seldom, so its file is linked; `half` comes in with a part of its own."""
    era = step // 8
    return {
        "era": np.arange(era, era + 400),
        "half": np.full(90, step // 3),
        "salt": salt,
        "w": np.full(50, step + salt / 16, np.float32),
    }


class Managers(RuleBasedStateMachine):
    """Managers of one policy on one root, and a dictionary of what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cordwood-model-"))
        self.root = self.folder / "run"
        self.now = 1_000_000.0
        self.clock = patch("time.time", lambda: self.now)
        self.clock.start()
        self.model: dict[int, tuple[SavedStep, int]] = {}  # steps that must be whole, their salt
        self.foreign: dict[int, tuple[str, int]] = {}  # of other tools: the entry, the salt
        self.may_be_gone: set[int] = set()  # by a deletion that was cut off, or not yet made
        self.pins: dict[int, list[AbstractContextManager[str]]] = {}
        self.versions: dict[int, int] = {}  # how often each step was saved
        self.read: set[tuple[int, int]] | None = None  # by the reader; None: it has not looked yet
        self.unreported: set[int] = set()  # managers whose last save failed, which nobody has asked
        self.broken: set[int] = set()  # steps whose save was broken, perhaps after its first mkdir

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: KeepPolicy) -> None:
        self.policy = policy
        self.managers = [self.manager(who) for who in range(len(BACKGROUND))]
        self.reader = StepReader(self.root)

    def manager(self, who: int) -> CheckpointManager:
        return CheckpointManager(
            self.root, keep=self.policy, background=BACKGROUND[who], rewrite_every=5
        )

    # What is there

    def numbers(self) -> set[int]:
        return {*self.model, *self.foreign}

    def next_step(self, by: int) -> int:
        return max(self.numbers(), default=-1) + by

    def pick(self, among: Any, pick: int) -> int:
        steps = sorted(among)
        return steps[pick % len(steps)]

    def commit(self, step: int, loss: float, salt: int) -> set[int]:
        """In the dictionary too; which steps are to go now."""
        self.model[step] = SavedStep(step, self.now, {"loss": loss}), salt
        self.versions[step] = self.versions.get(step, 0) + 1
        return self.unwanted()

    def unwanted(self) -> set[int]:
        saved = sorted(entry for entry, _ in self.model.values())
        newest = max(self.model, default=None)
        return {*self.model} - {*self.policy.kept(saved, self.now), newest, *self.pins}

    # Saves

    def ask_to_save(self, who: int, step: int, loss: float, salt: int) -> PendingSave | None:
        """Save; a failure of the save before is reported first, once."""
        self.now += 1e-3  # no two saves of a step begin at one time
        if who in self.unreported:
            self.unreported.discard(who)
            with pytest.raises(PendingSaveError):
                self.managers[who].save(step, tree_of(step, salt), metrics={"loss": loss})
        return self.managers[who].save(step, tree_of(step, salt), metrics={"loss": loss})

    def begin_save(self, who: int, step: int, loss: float, salt: int) -> PendingSave:
        pending = self.ask_to_save(who, step, loss, salt)
        assert pending is not None
        return pending

    def break_save(self, who: int, step: int, salt: int, how: syscalls.SystemCalls) -> None:
        """Begin a save whose system calls fail; its failure is not asked for."""
        self.broken.add(step)
        with syscalls.override(how), suppress(Killed, OSError, CordwoodError):
            self.unreported.discard(who)  # it is reported now, and nothing is begun
            pending = self.managers[who].save(step, tree_of(step, salt), metrics={"loss": 1.0})
            if pending is not None:
                pending._wait_quietly()
            self.finish(who)
            if pending is not None and pending.failed:
                self.unreported.add(who)
        if (self.root / str(step) / "cordwood.json").exists():  # all or nothing
            self.may_be_gone |= self.commit(step, 1.0, salt)

    @rule(
        who=whos,
        by=st.integers(1, 3),
        loss=st.sampled_from([0.5, 1.0, 2.0, float("nan")]),
        salt=st.integers(0, 9),
    )
    def save(self, who: int, by: int, loss: float, salt: int) -> None:
        self.save_well(who, self.next_step(by), loss, salt)

    def finish(self, who: int) -> None:
        """Wait for the work after the commits; no failure is reported here."""
        self.managers[who]._queue.post_commit.wait(None)

    def save_well(self, who: int, step: int, loss: float, salt: int) -> None:
        """Save without a failure: it also completes what other saves have begun."""
        self.begin_save(who, step, loss, salt).wait()
        self.finish(who)
        self.all_is_done(step, loss, salt)

    def all_is_done(self, step: int, loss: float, salt: int) -> None:
        for gone in self.commit(step, loss, salt):
            del self.model[gone]
        self.may_be_gone.clear()
        existing = set(os.listdir(self.root)) - {LOCK}
        # An empty directory may be anybody's: it stays until a step of that number is saved.
        existing -= {str(each) for each in self.broken if self.is_empty(each)}
        assert existing == {*map(str, self.model), *(entry for entry, _ in self.foreign.values())}

    def is_empty(self, step: int) -> bool:
        return step not in self.model and not any((self.root / str(step)).glob("*"))

    @rule(who=whos, other=whos, salt=st.integers(0, 9))
    def save_while_another_reads(self, who: int, other: int, salt: int) -> None:
        step = self.next_step(1)
        pending = self.begin_save(who, step, 1.0, salt)
        newest = max(self.numbers(), default=None)
        try:
            with unfinished_steps_allowed():
                restored = self.managers[other].restore()
        finally:
            pending.wait()
            self.finish(who)
        if restored is None or restored.step == newest:
            assert newest is None or restored is not None
        else:
            assert (restored.step, restored.tree["salt"]) == (step, salt)
        self.all_is_done(step, 1.0, salt)

    @precondition(lambda self: self.model)
    @rule(who=whos, back=st.integers(0, 5))
    def save_an_old_step(self, who: int, back: int) -> None:
        step = max(0, max(self.numbers()) - back)
        try:
            pending = self.ask_to_save(who, step, 1.0, 99)
        except StepError:
            return
        if pending is None:  # it has just restored that step
            assert step in self.numbers()
            return
        # The last that it saved was that very step, and it takes this for the same save.
        assert pending.done
        if step in set(self.model) - self.may_be_gone:
            salt = self.model[step][1]
            assert cordwood.load(self.root / str(step))["salt"] == salt

    # What goes wrong

    @rule(who=whos, call=calls, code=codes, lasting=st.booleans())
    def a_call_fails(self, who: int, call: int, code: int, lasting: bool) -> None:
        self.break_save(who, self.next_step(1), 7, FailingSystem(call, code, lasting=lasting))

    @precondition(lambda self: self.unreported)
    @rule(pick=picks)
    def a_failure_is_asked_for(self, pick: int) -> None:
        who = self.pick(self.unreported, pick)
        with pytest.raises((OSError, CordwoodError)):
            self.managers[who].wait()
        self.unreported.discard(who)
        self.managers[who].wait()  # reported once

    @rule(who=whos, call=calls)
    def a_process_is_killed(self, who: int, call: int) -> None:
        self.break_save(who, self.next_step(1), 8, Dying(call))
        self.start_anew(who)

    def start_anew(self, who: int) -> None:
        self.unreported.discard(who)
        self.be_told(who)
        self.managers[who] = self.manager(who)

    def be_told(self, who: int) -> None:
        with suppress(OSError, CordwoodError, Killed):
            self.managers[who].wait()

    @precondition(lambda self: self.model and max(self.model) == max(self.numbers()))
    @rule(who=whos, delete=st.booleans())
    def the_newest_is_damaged(self, who: int, delete: bool) -> None:
        step = max(self.model)
        for file in (self.root / str(step)).glob("data-*"):
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.unlink()  # the other steps have a name of it too
            file.write_bytes(content)
        del self.model[step]
        self.unpin(step)
        for manager in self.managers:
            self.restore_newest(manager)
        if delete:
            self.managers[who].delete(step)
        else:
            self.save_well(who, step, 1.0, 11)

    @rule(seconds=st.sampled_from([1.0, 30.0, 1e6, -20.0, -1e6]))
    def the_clock_jumps(self, seconds: float) -> None:
        self.now += seconds

    # Deletions and pins

    @precondition(lambda self: self.model)
    @rule(who=whos, pick=picks)
    def delete(self, who: int, pick: int) -> None:
        step = self.pick(self.model, pick)
        if step in self.pins:
            with pytest.raises(StepError, match=f"step {step} is in use, and was not deleted"):
                self.managers[who].delete(step)
        else:
            self.managers[who].delete(step)
            del self.model[step]
            self.may_be_gone.discard(step)
            assert not (self.root / str(step)).exists()

    @precondition(lambda self: self.numbers())
    @rule(who=whos, pick=picks)
    def go_back(self, who: int, pick: int) -> None:
        step = self.pick(self.numbers(), pick)
        later = {number for number in self.numbers() if number > step}
        staying = {number for number in later if number in self.pins or self.is_of_flax(number)}
        if staying:
            with pytest.raises(StepError, match=r"(was|were) not deleted"):
                self.managers[who].delete_after(step)
        else:
            assert later <= {*self.managers[who].delete_after(step)}
        for gone in later - staying:
            self.model.pop(gone, None)
            self.foreign.pop(gone, None)
            self.may_be_gone.discard(gone)
        assert self.managers[who].steps() == sorted(self.numbers())

    @rule(who=whos, by=st.integers(1, 3))
    def delete_what_is_not_there(self, who: int, by: int) -> None:
        step = self.next_step(by)
        if (self.root / str(step)).exists():  # of a save that failed: that goes
            self.managers[who].delete(step)
        with pytest.raises(FileNotFoundError, match=f"there is no step {step}"):
            self.managers[who].delete(step)

    @precondition(lambda self: bool(set(self.model) - set(self.pins)))
    @rule(who=whos, pick=picks, call=st.integers(1, 12), dies=st.booleans(), code=codes)
    def a_deletion_is_cut_off(self, who: int, pick: int, call: int, dies: bool, code: int) -> None:
        step = self.pick(set(self.model) - set(self.pins), pick)
        how = Dying(call) if dies else FailingSystem(call, code)
        with syscalls.override(how), suppress(Killed, OSError, CordwoodError):
            self.managers[who].delete(step)
        if not (self.root / str(step)).exists():
            del self.model[step]
            self.may_be_gone.discard(step)
        if dies:
            self.start_anew(who)

    @precondition(lambda self: self.model)
    @rule(who=whos, pick=picks)
    def pin(self, who: int, pick: int) -> None:
        step = self.pick(self.model, pick)
        held = self.managers[who].pin(step)
        assert held.__enter__() == str(self.root / str(step))
        self.pins.setdefault(step, []).append(held)
        self.may_be_gone.discard(step)

    @precondition(lambda self: self.pins)
    @rule(pick=picks)
    def a_pin_ends(self, pick: int) -> None:
        step = self.pick(self.pins, pick)
        self.pins[step].pop().__exit__(None, None, None)
        if not self.pins[step]:
            del self.pins[step]
            self.may_be_gone |= self.unwanted() & {step}

    def unpin(self, step: int) -> None:
        for held in self.pins.pop(step, []):
            held.__exit__(None, None, None)

    # Steps of other tools

    @rule(tool=st.sampled_from(sorted(FOREIGN)), by=st.integers(1, 3), salt=st.integers(0, 9))
    def another_tool_saves(self, tool: str, by: int, salt: int) -> None:
        step = self.next_step(by)
        entry = FOREIGN[tool].format(step)
        self.root.mkdir(exist_ok=True)
        format = "msgpack" if tool == "Flax" else None
        shutil.rmtree(self.root / str(step), ignore_errors=True)  # of a save that failed
        cordwood.save(self.root / entry, tree_of(step, salt), format=format)
        self.foreign[step] = entry, salt
        self.versions[step] = self.versions.get(step, 0) + 1

    def is_of_flax(self, step: int) -> bool:
        return step in self.foreign and self.foreign[step][0] != str(step)

    def stamp(self, step: int) -> int:
        """Return what tells a step from one saved anew under its number: Flax's have nothing."""
        return 0 if self.is_of_flax(step) else self.versions[step]

    @precondition(lambda self: self.foreign)
    @rule(who=whos, pick=picks)
    def delete_a_step_of_another_tool(self, who: int, pick: int) -> None:
        step = self.pick(self.foreign, pick)
        entry, _ = self.foreign[step]
        if self.is_of_flax(step):
            with pytest.raises(StepError, match="it was saved by Flax, and a manager deletes only"):
                self.managers[who].delete(step)
            return
        self.managers[who].delete(step)
        del self.foreign[step]
        assert not (self.root / entry).exists()

    # Reading

    @rule(who=whos)
    def a_new_manager(self, who: int) -> None:
        self.start_anew(who)
        self.restore_newest(self.managers[who])

    @rule(who=whos)
    def restore(self, who: int) -> None:
        self.restore_newest(self.managers[who])

    def restore_newest(self, manager: CheckpointManager) -> None:
        with unfinished_steps_allowed():
            try:
                restored = manager.restore()
            except CorruptionError:
                assert not self.numbers()
                return
        if restored is None:
            assert not self.numbers()
            return
        assert restored.step == max(self.numbers())
        self.require_right(restored)

    def require_right(self, found: Restored[Any]) -> None:
        if found.step in self.model:
            entry, salt = self.model[found.step]
            assert str(found.metrics) == str(entry.metrics)
        else:
            _, salt = self.foreign[found.step]
            assert (found.metrics, found.extras) == ({}, None)
        assert found.tree["salt"] == salt
        for name, array in tree_of(found.step, salt).items():
            assert np.array_equal(found.tree[name], array)

    @precondition(lambda self: self.numbers())
    @rule(who=whos, pick=picks)
    def restore_one(self, who: int, pick: int) -> None:
        step = self.pick(self.numbers(), pick)
        self.require_right(self.managers[who].restore(step))

    @rule(who=whos, by=st.integers(1, 2))
    def restore_what_is_not_there(self, who: int, by: int) -> None:
        with pytest.raises((FileNotFoundError, IncompleteCheckpointError)):
            self.managers[who].restore(self.next_step(by))

    @rule()
    def read_what_is_new(self) -> None:
        entries = {(step, self.stamp(step)) for step in self.numbers()}
        new = sorted(entries - (self.read or set()))
        if self.read is None:
            new = new[-1:]
        assert list(self.reader.new_steps(0)) == [step for step, _ in new]
        self.read = entries

    @rule(who=whos)
    def look(self, who: int) -> None:
        manager = self.managers[who]
        assert manager.steps() == sorted(self.numbers())
        assert manager.latest() == max(self.numbers(), default=None)
        plan = manager.plan()
        assert plan.deleted == sorted(self.unwanted())
        assert plan.kept == sorted(self.numbers() - self.unwanted())
        for step, (entry, _) in self.model.items():
            assert str(manager.metrics(step)) == str(entry.metrics)

    @invariant()
    def every_step_that_is_there_is_right(self) -> None:
        entries = {
            int(entry)
            for entry in (os.listdir(self.root) if self.root.exists() else [])
            if entry.isdigit() and (self.root / entry / "cordwood.json").exists()
        }
        entries -= set(self.foreign)
        must = set(self.model) - self.may_be_gone
        assert must <= entries, f"lost: {must - entries}"
        assert entries <= set(self.model), f"come back: {entries - set(self.model)}"
        for step in entries:
            cordwood.verify(self.root / str(step))
        for step, (entry, salt) in self.foreign.items():
            assert cordwood.load(self.root / entry)["salt"] == salt, step
        for step in set(self.model) - entries:
            del self.model[step]
        self.may_be_gone &= entries

    def teardown(self) -> None:
        for step in list(self.pins):
            self.unpin(step)
        for who in range(len(self.managers)):
            self.be_told(who)
        self.clock.stop()
        shutil.rmtree(self.folder)


@contextmanager
def unfinished_steps_allowed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


TestManagers = Managers.TestCase
TestManagers.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
