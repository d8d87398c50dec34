"""The steps that lie in a root, as they are now."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from cordwood.api.stores import store_at
from cordwood.engine.step_places import StepPlace
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.index_file import decode_index
from cordwood.formats.packs.rules import RULES
from cordwood.manager.foreign import foreign_step
from cordwood.manager.keep_policies import SavedStep
from cordwood.manager.records import KEY, Record, decode_record
from cordwood.manager.step_names import step_of

__all__ = ["Listing", "Step"]

_ATTEMPTS = 20  # to see a root while nothing changes in it
_DAMAGED = "damaged: "
_FOREIGN = "foreign"  # the stamp of what another tool has saved


class Step(NamedTuple):
    """A directory or file that is named like a step."""

    step: int
    entry: str  # its name in the root
    path: str
    stamp: Hashable | None  # changes with its index; None: no save to it has finished
    record: Record | None  # what a manager's save left
    problem: str  # why no policy counts it; "" where they do
    format: str | None = None  # of a file, as `cordwood.load` takes it

    @property
    def finished(self) -> bool:
        """Whether there is a checkpoint, whatever is in it."""
        return self.stamp is not None

    @property
    def damaged(self) -> bool:
        """Whether it is known to be."""
        return self.finished and self.problem.startswith(_DAMAGED)

    @property
    def whole(self) -> bool:
        """Whether it can be restored, as far as is known."""
        return self.finished and not self.damaged

    @property
    def counts(self) -> bool:
        """Whether policies are for it: a manager has saved it, and nothing is wrong with it."""
        return self.record is not None and not self.problem

    @property
    def saved(self) -> SavedStep:
        """What policies see of it."""
        assert self.record is not None
        return SavedStep(self.step, self.record.time, self.record.metrics)


class Listing:
    """Reads each index once, and again when it has been replaced."""

    def __init__(self, place: StepPlace) -> None:
        self._place = place
        self._known: Mapping[str, Step] = {}
        self._damaged: dict[tuple[str, Hashable | None], str] = {}

    def steps(self) -> list[Step]:
        """All steps, finished or not, by increasing number; of two of one number the better."""
        for _ in range(_ATTEMPTS):
            entries = self._place.entries()
            found = self._look_at(entries)
            # While the entries are looked at one by one, a step may be committed that was already
            # passed, and then an older one deleted: as if no step had ever been there.
            if all(step.finished for step in found.values()) or self._place.entries() == entries:
                break
        self._known = found  # at once: other threads read it
        best: dict[int, Step] = {}
        for step in found.values():
            damage = self._damaged.get((step.entry, step.stamp))
            step = step if damage is None else step._replace(problem=damage)
            if step.step not in best or _rank(step) > _rank(best[step.step]):
                best[step.step] = step
        return [best[number] for number in sorted(best)]

    def mark_damaged(self, number: int, why: str) -> None:
        """Count a step no more, until it is saved anew."""
        for step in self.steps():
            if step.step == number:
                self._damaged[step.entry, step.stamp] = _DAMAGED + why

    def _look_at(self, entries: Mapping[str, Hashable | None]) -> dict[str, Step]:
        found: dict[str, Step] = {}
        for entry, stamp in entries.items():
            step = self._look(entry, stamp)
            if step is not None:
                found[entry] = step
        for entry in self._place.files():
            step = self._foreign(entry, is_file=True)
            if step is not None:
                found[entry] = step
        return found

    def _look(self, entry: str, stamp: Hashable | None) -> Step | None:
        known = self._known.get(entry)
        if known is not None and stamp is not None and known.stamp == stamp:
            return known
        number = step_of(entry)
        if number is None or stamp is None:
            foreign = self._foreign(entry, is_file=False)
            if foreign is not None or number is None:
                return foreign
        step = Step(number, entry, self._place.path_of(entry), stamp, None, "not finished")
        return step if stamp is None else _read(step)

    def _foreign(self, entry: str, *, is_file: bool) -> Step | None:
        known = self._known.get(entry)
        if known is not None and known.stamp == _FOREIGN:
            return known
        path = self._place.path_of(entry)
        found = foreign_step(entry, path, is_file=is_file)
        if found is None:
            return None
        problem = f"saved by {found.tool}"
        return Step(found.step, entry, path, _FOREIGN, None, problem, found.format)


def _rank(step: Step) -> tuple[bool, bool, bool]:
    return step.whole, step.counts, step_of(step.entry) is not None


def _read(step: Step) -> Step:
    where = f"{step.path}/{RULES.index_name}"
    try:
        data = store_at(step.path).read_index()
        if data is None:  # it has just been deleted
            return step._replace(stamp=None)
        item = decode_index(data).get("")
        metadata = item.get("metadata") if type(item) is dict else None
        text = metadata.get(KEY) if type(metadata) is dict else None
        if type(text) is not str:
            return step._replace(problem="saved by cordwood.save")
        return step._replace(record=decode_record(text, f"{where}: {KEY}"), problem="")
    except OSError as e:  # which may pass: to be read again the next time
        return step._replace(problem=f"it cannot be read: {e}", stamp=object())
    except (CorruptionError, FormatError, UnsupportedFormatError) as e:
        return step._replace(problem=_DAMAGED + str(e).splitlines()[0])
