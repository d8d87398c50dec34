"""A training run on a disk that fills up and is freed again, at random moments of its saves.

Each failed save is reported, is never the latest step, and costs no other step; once space is free
again, saves succeed. `make soak` fills an ext4 and a tmpfs 25 times each; both need root.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood import CheckpointManager, KeepEvery, KeepLast, load, verify
from cordwood.errors import PendingSaveError
from cordwood.testing import assert_trees_equal
from tests.faults import why_no_power_cuts
from tests.faults.disks import make_disk, mounted, mounted_memory
from tests.soak.filler import Filler
from tests.soak.page import SOAK, as_table, write_section
from tests.soak.roots import inside, strangers, whole_steps
from tests.soak.training import State, loss_of, state_at

CYCLES = 25 if SOAK else 3
DISK_BYTES = 16 << 20
WRITTEN_BYTES = 110 << 10  # bytes that a save writes; the rest is linked
SECONDS = 0.02  # the approximate duration of a save
TRIES = 3  # saves in a cycle before the disk is certainly full
KEEP_LAST, KEEP_EVERY = 3, 30


class Run:
    """A run on a small disk, and the steps that must exist."""

    def __init__(self, disk: str, rng: random.Random) -> None:
        self.root = Path(disk) / "run"
        self.filler = Filler(disk)
        self.state: State = state_at(0)
        self.good: set[int] = set()  # steps that were reported as committed and are kept
        self.saved = self.failed = self.reported_late = self.most_left = 0
        self._rng = rng
        keep = KeepLast(KEEP_LAST) | KeepEvery(KEEP_EVERY)
        self._manager = CheckpointManager(self.root, keep=keep)

    def save(self) -> bool:
        """Save the next step; return True if saved. If not, the run stays at its last good step."""
        step, late = self.state["step"] + 1, self._rng.random() < 0.3
        try:
            self._begin(step)
            if late:  # the next call reports its error
                self._begin(step + 1)
                self._commit(step)
                step += 1
            self._manager.wait()
        except PendingSaveError as e:
            self._failed(e.__cause__, e, f"the save of step {step} in the background failed")
            self.reported_late += 1
        except OSError as e:
            self._failed(e, e, "No space left on device")
        else:
            self._commit(step)
            self.state = state_at(step)
            return True
        self.state = state_at(max(self.good, default=0))
        return False

    def _begin(self, step: int) -> None:
        state = state_at(step)
        self._manager.save(step, state, metrics={"loss": loss_of(state["weights"])})

    def _failed(self, cause: BaseException | None, reported: Exception, text: str) -> None:
        assert isinstance(cause, OSError)
        assert cause.errno == errno.ENOSPC
        assert text in str(reported)
        self.failed += 1

    def _commit(self, step: int) -> None:
        self.saved += 1
        self.good = {
            old for old in {*self.good, step} if old > step - KEEP_LAST or old % KEEP_EVERY == 0
        }

    def check(self) -> None:
        """Require that every good step exists and is right, and no failed step exists."""
        present = whole_steps(self.root)
        newest = max(self.good, default=None)
        assert self._manager.latest() == newest == max(present, default=None)
        assert self.good <= set(present)
        for step in present:
            assert verify(self.root / str(step)).unverified_bytes == 0
            assert_trees_equal(load(self.root / str(step), to="numpy"), state_at(step))
        self.most_left = max(self.most_left, len(strangers(self.root)))

    def require_clean(self) -> None:
        """Require that only the kept steps exist."""
        assert whole_steps(self.root) == sorted(self.good)
        assert strangers(self.root) == []
        for step in self.good:
            assert inside(self.root / str(step)) == []


def fill_and_free(run: Run, rng: random.Random) -> None:
    """Fill the disk while the run saves, until the last save must fail, then free it.

    The disk may be freed in the middle of a save.
    """
    run.filler.fill_in(
        rng.uniform(0, 2 * SECONDS), leave_bytes=rng.randrange(int(1.2 * WRITTEN_BYTES))
    )
    for _ in range(TRIES):
        run.save()
        run.check()
    run.filler.settle()
    run.filler.fill()
    assert not run.save()
    run.check()
    run.filler.free_in(rng.uniform(0, SECONDS))
    if rng.random() < 0.5:
        run.save()
        run.check()
    run.filler.settle()
    assert run.save()
    assert run.save()
    run.check()
    run.require_clean()


def test_failed_saves_are_reported_and_cost_nothing(tmp_path: Path) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    rows = []
    for kind in ("ext4", "tmpfs"):
        rng = random.Random(3)
        with small_disk(tmp_path, kind) as place:
            run = Run(place, rng)
            assert run.save()
            for _ in range(CYCLES):
                fill_and_free(run, rng)
        rows.append(
            [kind, CYCLES, run.saved, run.failed, run.reported_late, 0, 0, 0, run.most_left, 0]
        )
    write_section(
        "A full disk",
        f"A disk of {DISK_BYTES >> 20} MiB is filled at a random moment of a save, up to a random "
        "few blocks. Some saves later it is\nfilled up to the last block. Then it is freed, "
        "possibly in the middle of a save. The policy is\n"
        f"`keep=KeepLast({KEEP_LAST}) | KeepEvery({KEEP_EVERY})`. `wait` or the next `save` "
        "reported every failed save. `latest()` was never its step,\nand no step was deleted for "
        "it:\n\n"
        + as_table(
            [
                "disk",
                "filled and freed",
                "saves",
                "failed saves",
                "reported by the next save",
                "not reported",
                "good steps lost",
                "wrong",
                "leftovers while full, at most",
                "after space was freed",
            ],
            rows,
        ),
    )


@contextmanager
def small_disk(folder: Path, kind: str) -> Iterator[str]:
    place = str(folder / kind)
    if kind == "ext4":
        image = str(folder / "disk.img")
        make_disk(image, DISK_BYTES)
        with mounted(image, place):
            yield place
    else:
        with mounted_memory(DISK_BYTES, place):
            yield place
