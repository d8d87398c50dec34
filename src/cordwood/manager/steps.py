"""The steps in the root of a run, read from its storage as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.load_format import collector_of
from cordwood.formats.place import Place
from cordwood.formats.step_names import (
    is_named_step,
    possible_step,
    step_in_name,
    step_name,
)
from cordwood.formats.step_record import encode_record
from cordwood.formats.table import DEFAULT
from cordwood.formats.tool_steps import step_of_tool
from cordwood.manager.other_checkpoints import OtherCheckpoint, other_checkpoints
from cordwood.manager.read_step import read_step, with_record
from cordwood.manager.step import Fault, Step, best_of_each, rank
from cordwood.policies.saved_step import SavedStep
from cordwood.storage.locations import LocalPath, Url
from cordwood.storage.step_storage import StepEntry, StepStorage, StoredRecord
from cordwood.threads.log import log
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks

_ATTEMPTS = 20  # to read a root at one moment, with no change meanwhile
_FOREIGN = "foreign"  # the stamp of steps that another tool has saved
_MAX_READ_SINGLY = 16  # steps of an object store whose indexes are read one by one
_MAX_STORED_RECORD = 4096  # characters; longer ones are read from the index


class Steps:
    """The steps of a root. It reads each index once, and again when it was replaced.

    Attributes:
        storage: the directory or URL that holds them.
        location: its path or URL.
        root: the same as text.
        unread: the names of entries that look like those of steps, and that managers do not read,
            such as `ckpt_100`, as far as the root was listed.
    """

    def __init__(self, storage: StepStorage) -> None:
        self.unread: set[str] = set()
        self.storage = storage
        self.location = storage.location
        self.root = str(storage.location)
        self._steps: dict[str, Step] = {}
        self._warned: set[int] = set()  # numbers that two entries have
        self._damaged: dict[tuple[str, Hashable | None], str] = {}
        self._stored_records: Mapping[str, StoredRecord] = {}  # as last read or written

    def all(self) -> list[Step]:
        """Return all steps, finished or not, by number; the better one of two with one number."""
        return best_of_each(self.entries(start=0))

    def down_to(self, is_wanted: Callable[[Step], bool]) -> list[Step]:
        """Return the steps from the newest down to the first for which `is_wanted` is true.

        Older steps are not read.
        """
        return best_of_each(self.entries(start=0, down_to=is_wanted))[::-1]

    def newest(self, is_wanted: Callable[[Step], bool]) -> Step | None:
        """Return the newest step for which `is_wanted` is true; None if there is none."""
        steps = self.down_to(is_wanted)
        return steps[-1] if steps and is_wanted(steps[-1]) else None

    def latest(self) -> int | None:
        """Return the number of the newest whole step; None if there is none."""
        step = self.newest(lambda step: step.whole)
        return None if step is None else step.step

    def at(self, number: int) -> Step | None:
        """Return the step of a number, the better one of two; None if there is none."""
        steps = self.entries(start=number, stop=number + 1, down_to=lambda _: True)
        return next(iter(best_of_each(steps)), None)

    def entries(
        self,
        *,
        start: int,
        stop: int | None = None,
        down_to: Callable[[Step], bool] | None = None,
    ) -> list[Step]:
        """Return all entries of some steps by increasing number, read at one moment.

        Args:
            start: the first step.
            stop: the first later step that is not returned; None: all steps from `start` on are.
            down_to: the oldest step to return is the first, from the newest on, for which this is
                true; older ones are not read. None: all are read, in an object store several at
                once.
        """

        def is_wanted(name: str) -> bool:
            number = possible_step(name)
            if number is None and is_named_step(name):
                self.unread.add(name)
            return number is not None and number >= start and (stop is None or number < stop)

        steps: list[Step] = []
        for _ in range(_ATTEMPTS):
            entries = self.storage.entries(is_wanted)
            for name in list(self._steps):  # other threads may add to it meanwhile
                if name not in entries and is_wanted(name):
                    self._steps.pop(name, None)
            steps = []
            for group in self._read_all(
                entries, self._read_ahead(entries) if down_to is None else {}
            ):
                steps += group
                if down_to is not None and down_to(max(group, key=rank)):
                    break
            # Entries are read one by one. A step may be committed after it was read as unfinished,
            # and an older one deleted before it is read: it would look as if there were no step.
            if all(
                each.finished for each in best_of_each(steps)
            ) or entries == self.storage.entries(is_wanted):
                break
        return steps[::-1]

    def unfinished(self) -> list[Step]:
        """Return the unfinished steps; no index is read."""
        entries = self.storage.entries(lambda name: step_in_name(name) is not None)
        steps = [self._look(name, entry) for name, entry in entries.items() if entry.stamp is None]
        return [step for step in steps if step is not None and not step.finished]

    def others(self) -> list[OtherCheckpoint]:
        """Return the checkpoints in the root that are not steps, by their names."""
        steps = {each.entry for each in self.all() if each.whole or each.tool}
        return other_checkpoints(self.storage, steps=steps)

    def names(self) -> list[str]:
        """Return the names of all entries of the root, except hidden ones."""
        return sorted(self.storage.entries(lambda _: True))

    def died(self, step: Step) -> bool:
        """Return True if the save of a step began and its process has died, as far as is known."""
        if step.finished or isinstance(step.location, Url):  # without locks it is not known
            return False
        try:
            leftovers = collector_of(DEFAULT).collect(step.location, dry_run=True).names
        except (OSError, CordwoodError):  # deleted, or finished by now
            return False
        if not leftovers or self.storage.in_use(step.entry):
            return False
        current = self.at(step.step)
        return current is not None and not current.finished

    def mark_damaged(self, number: int, why: str) -> None:
        """Count a step as damaged until it is saved again."""
        step = self.at(number)
        if step is not None:
            self._damaged[step.entry, step.stamp] = why

    def _read_ahead(self, entries: Mapping[str, StepEntry]) -> dict[str, Step | None]:
        """Read the steps of an object store that were not read before, several at once."""
        if isinstance(self.location, LocalPath):
            return {}
        unread = [
            name
            for name, entry in entries.items()
            if name not in self._steps or self._steps[name].stamp not in (entry.stamp, _FOREIGN)
        ]
        steps: dict[str, Step | None] = {}
        if len(unread) > _MAX_READ_SINGLY:
            self._stored_records = self.storage.read_records()
            for name in unread:
                record = self._stored_records.get(name)
                stamp = entries[name].stamp
                if record is not None and stamp is not None and record.stamp == stamp:
                    with suppress(CordwoodError):  # else its index is read
                        steps[name] = self._from_record(name, record)
            unread = [name for name in unread if name not in steps]

        def look(number: int) -> None:
            steps[unread[number]] = self._look(unread[number], entries[unread[number]])

        run_tasks(
            len(unread), threads=reading_threads(latency_bound=True), make_worker=lambda: look
        )
        return steps

    def _from_record(self, name: str, record: StoredRecord) -> Step:
        location, size = self.storage.location_of(name), record.data_bytes
        step = Step(_number_in(name), name, location, record.stamp, data_bytes=size)
        return with_record(step, record.text)

    def store_records(self) -> None:
        """Store the records of all steps in one object, once many are not in it yet.

        So a new process that lists the steps of an object store need not read every index. Does
        nothing on a disk. Raises OSError.
        """
        if isinstance(self.location, LocalPath):
            return
        records: dict[str, StoredRecord] = {}
        for step in self.all():
            if step.record is not None and step.counts and step.data_bytes is not None:
                text = encode_record(step.record)
                if len(text) <= _MAX_STORED_RECORD:
                    records[step.entry] = StoredRecord(step.stamp, text, step.data_bytes)
        new = sum(self._stored_records.get(name) != record for name, record in records.items())
        if new > _MAX_READ_SINGLY:
            self.storage.write_records(records)
            self._stored_records = records

    def _read_all(
        self, entries: Mapping[str, StepEntry], ahead: Mapping[str, Step | None]
    ) -> Iterator[list[Step]]:
        names: dict[int, list[str]] = {}
        for name in entries:
            names.setdefault(_number_in(name), []).append(name)
        for number in sorted(names, reverse=True):
            looked = [
                ahead[name] if name in ahead else self._look(name, entries[name])
                for name in names[number]
            ]
            steps = [step for step in looked if step is not None]
            for step in steps:
                self._steps[step.entry] = step
            if sum(step.whole for step in steps) > 1:
                self._warn_of_two_names(steps)
            if steps:
                yield [self._with_damage(step) for step in steps]

    def _warn_of_two_names(self, steps: Sequence[Step]) -> None:
        """Log a warning, once for each number, about several entries that are one step."""
        (best,) = best_of_each(steps)
        if best.step not in self._warned:
            self._warned.add(best.step)
            log.warning(
                "%s: %s are all step %d: %s is taken for it; rename the other, or remove it",
                self.root,
                " and ".join(sorted(step.entry for step in steps if step.whole)),
                best.step,
                best.entry,
            )

    def _with_damage(self, step: Step) -> Step:
        damage = self._damaged.get((step.entry, step.stamp))
        return step if damage is None else step.with_fault(Fault.DAMAGED, damage)

    def _look(self, name: str, entry: StepEntry) -> Step | None:
        cached = self._steps.get(name)
        if cached is not None and entry.stamp is not None and cached.stamp == entry.stamp:
            return cached
        number = _number_in(name)
        if entry.problem:
            step = Step(number, name, self.storage.location_of(name), entry.stamp)
            return step.with_fault(Fault.INCOMPLETE, entry.problem)
        is_ours = name == step_name(number)
        if not is_ours or entry.stamp is None:
            foreign = self._foreign(name, entry)
            if foreign is None and step_in_name(name) is None:
                self.unread.add(name)
            if foreign is not None or not is_ours or entry.is_file:
                return foreign
        location = self.storage.location_of(name)
        problem, is_link = "not finished", entry.is_link
        step = Step(number, name, location, entry.stamp, problem=problem, is_link=is_link)
        return step if entry.stamp is None else read_step(step)

    def _foreign(self, name: str, entry: StepEntry) -> Step | None:
        """Return an entry as the step of another tool; None if it is none."""
        cached = self._steps.get(name)
        if cached is not None and cached.stamp == _FOREIGN:
            return cached
        location = self.storage.location_of(name)
        place = Place(location, directory=self.storage.directory(name))
        stored = step_of_tool(name, place, is_file=entry.is_file)
        if stored is None:
            return None
        number, tool, metrics = _number_in(name), stored.tool, None
        if stored.metrics is not None:
            metrics = SavedStep(number, *stored.metrics)
        step = Step(
            number,
            name,
            location,
            stamp=_FOREIGN if stored.is_finished else None,
            problem=f"saved by {tool}" if stored.is_finished else f"{tool} did not finish its save",
            format=stored.format,
            tool=tool,
            is_link=entry.is_link,
            foreign_metrics=metrics,
        )
        if entry.stamp is None:
            return step
        read = read_step(step)  # `checkpoint_7` with an index of cordwood
        return read._replace(stamp=_FOREIGN) if read.damaged else step


def _number_in(name: str) -> int:
    """Return the number in the name of an entry that is named as a step."""
    number = possible_step(name)
    assert number is not None
    return number
