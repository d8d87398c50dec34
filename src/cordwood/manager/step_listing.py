"""The steps that lie in a root, as they are now."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

from cordwood.encoding.step_record import KEY, Record, decode_record, wrong_step
from cordwood.errors import CordwoodError, CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.file_names import RULES
from cordwood.formats.packs.index_file import decode_index
from cordwood.formats.packs.locate import collect, store_at
from cordwood.formats.step_directories import step_in_name
from cordwood.io.threads import reading_threads, run_tasks
from cordwood.manager.foreign_steps import OtherCheckpoint, foreign_step, other_checkpoints
from cordwood.manager.keep_policies import SavedStep
from cordwood.manager.step_names import step_from_name, step_name
from cordwood.storage.step_storage import UNREAD_STAMP, StepEntry, StepStorage
from cordwood.storage.urls import parse_url

_ATTEMPTS = 20  # to see a root while nothing changes in it
_DAMAGED = "damaged: "
_NEWER = "of a newer version: "
_UNREAD = "it cannot be read: "
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
    tool: str = ""  # what has saved it, where that was no manager
    is_link: bool = False  # to where it lies
    noted: SavedStep | None = None  # by another tool, where it noted metrics

    @property
    def finished(self) -> bool:
        """True if there is a checkpoint, whatever is in it."""
        return self.stamp is not None

    @property
    def damaged(self) -> bool:
        """True if it is known to be damaged."""
        return self.finished and self.problem.startswith(_DAMAGED)

    @property
    def whole(self) -> bool:
        """True if it can be restored, as far as is known; perhaps by a newer cordwood."""
        return self.finished and not self.damaged

    @property
    def is_read(self) -> bool:
        """True if its index was read; False if the disk failed, which may pass."""
        return not self.problem.startswith(_UNREAD)

    @property
    def in_the_way(self) -> str:
        """The reason why the step cannot be saved where this lies; "" where it can."""
        if self.entry != step_name(self.step):
            return ""
        if self.tool:
            return f"it was saved by {self.tool}, and is not replaced: move it away"
        if self.is_link:
            return "it is a symbolic link, and is not written through: move it away"
        return ""

    def require_known(self) -> None:
        """Raise unless this is the step that its name says, as far as this version can tell.

        Raises:
            UnsupportedFormatError: a newer version saved it.
            CorruptionError: its record is that of another step.
        """
        if self.problem.startswith(_NEWER):
            raise UnsupportedFormatError(f"{self.path}: step {self.step} is {self.problem}")
        if self.record is not None and self.record.step != self.step:
            raise CorruptionError(f"{self.path}: step {self.step} is {self.problem}")

    @property
    def counts(self) -> bool:
        """True if policies apply: a manager has saved it, and nothing is wrong with it."""
        return self.record is not None and not self.problem

    @property
    def saved(self) -> SavedStep | None:
        """The step as policies see it; None where they do not.

        A step of another tool that has metrics is compared with the others, and never deleted.
        """
        if self.counts:
            assert self.record is not None
            return SavedStep(self.step, self.record.time, self.record.metrics)
        return self.noted if self.whole else None

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics; {} where none were saved."""
        noted = self.noted if self.record is None else self.record
        return {} if noted is None else dict(noted.metrics)


class StepListing:
    """Reads each index once, and again when it has been replaced."""

    def __init__(self, place: StepStorage) -> None:
        self._place = place
        self._known: dict[str, Step] = {}
        self._damaged: dict[tuple[str, Hashable | None], str] = {}

    def steps(self) -> list[Step]:
        """Return all steps, finished or not, by number; of two of one number the better."""
        return self._take(_every, _best_of_each, ahead=True)[::-1]

    def down_to(self, is_wanted: Callable[[Step], bool]) -> list[Step]:
        """Return the steps from the newest to the first of a kind; older ones are not read."""

        def take(groups: Iterator[list[Step]]) -> list[Step]:
            found = []
            for group in groups:
                found.append(max(group, key=_rank))
                if is_wanted(found[-1]):
                    break
            return found

        return self._take(_every, take)

    def newest(self, is_wanted: Callable[[Step], bool]) -> Step | None:
        """Return the newest step of a kind; None where there is none."""
        steps = self.down_to(is_wanted)
        return steps[-1] if steps and is_wanted(steps[-1]) else None

    def latest(self) -> int | None:
        """Return the number of the newest step that is whole; None where there is none."""
        step = self.newest(lambda step: step.whole)
        return None if step is None else step.step

    def at(self, number: int) -> Step | None:
        """Return the step of that number; of two the better; None where there is none."""
        return next(iter(self._take(lambda each: each == number, _best_of_each)), None)

    def entries(self, *, start: int, stop: int | None = None) -> list[Step]:
        """Return all entries of the steps of some numbers, by increasing number."""

        def within(number: int) -> bool:
            return number >= start and (stop is None or number < stop)

        def take(groups: Iterator[list[Step]]) -> list[Step]:
            return [each for group in groups for each in group]

        return self._take(within, take, ahead=True)[::-1]

    def unfinished(self) -> list[Step]:
        """Return the steps that are not finished; no index is read."""
        lying = self._place.entries(_wanted(_every), stamps=False)
        found = [self._look(name, entry) for name, entry in lying.items() if entry.stamp is None]
        return [step for step in found if step is not None and not step.finished]

    def others(self) -> list[OtherCheckpoint]:
        """Return the checkpoints that lie in the root and are no steps, by their names."""
        steps = {each.entry for each in self.steps() if each.whole}
        return other_checkpoints(self._place, steps=steps)

    def names(self) -> list[str]:
        """Return the names of all entries of the root, but hidden ones."""
        return sorted(self._place.entries(lambda _: True, stamps=False))

    def died(self, step: Step) -> bool:
        """Return True if a save to a step began and will not end, as far as that can be told."""
        if step.finished or parse_url(step.path) is not None:  # there are no locks: nothing is said
            return False
        try:
            left = collect(step.path, dry_run=True)
        except (OSError, CordwoodError):  # gone, or finished by now
            return False
        if not left or self._place.in_use(step.entry):
            return False
        now = self.at(step.step)
        return now is not None and not now.finished

    def mark_damaged(self, number: int, why: str) -> None:
        """Count a step as damaged until it is saved anew."""
        step = self.at(number)
        if step is not None:
            self._damaged[step.entry, step.stamp] = _DAMAGED + why

    def _take(
        self,
        numbers: Callable[[int], bool],
        take: Callable[[Iterator[list[Step]]], list[Step]],
        *,
        ahead: bool = False,
    ) -> list[Step]:
        """Return what `take` takes of the entries of each step, the newest first, at one moment.

        Args:
            numbers: of the steps that are looked at.
            take: given the entries of each step.
            ahead: all of them are taken: a store is asked for several at once.
        """
        found: list[Step] = []
        for _ in range(_ATTEMPTS):
            lying = self._place.entries(_wanted(numbers), stamps=ahead)
            for name in list(self._known):  # other threads add to it meanwhile
                if name not in lying and _wanted(numbers)(name):
                    self._known.pop(name, None)
            found = take(self._read_all(lying, self._read_ahead(lying) if ahead else {}))
            # While the entries are looked at one by one, a step may be committed that was already
            # passed, and then an older one deleted: as if no step had ever been there.
            if all(each.finished for each in found) or _same(
                lying, self._place.entries(_wanted(numbers), stamps=False)
            ):
                break
        return found

    def _read_ahead(self, lying: Mapping[str, StepEntry]) -> dict[str, Step | None]:
        """Look at the steps of a store that are not known yet, several at once."""
        if parse_url(self._place.name) is None:
            return {}
        names = [name for name, entry in lying.items() if entry.stamp is not None]
        unread = [
            name
            for name in names
            if name not in self._known or self._known[name].stamp != lying[name].stamp
        ]
        found: dict[str, Step | None] = {}

        def look(number: int) -> None:
            found[unread[number]] = self._look(unread[number], lying[unread[number]])

        run_tasks(
            len(unread), threads=reading_threads(latency_bound=True), make_worker=lambda: look
        )
        return found

    def _read_all(
        self, lying: Mapping[str, StepEntry], ahead: Mapping[str, Step | None]
    ) -> Iterator[list[Step]]:
        names: dict[int, list[str]] = {}
        for name in lying:
            number = step_in_name(name)
            assert number is not None
            names.setdefault(number, []).append(name)
        for number in sorted(names, reverse=True):
            looked = [
                ahead[name] if name in ahead else self._look(name, lying[name])
                for name in names[number]
            ]
            found = [step for step in looked if step is not None]
            for step in found:
                self._known[step.entry] = step
            if found:
                yield [self._with_damage(step) for step in found]

    def _with_damage(self, step: Step) -> Step:
        damage = self._damaged.get((step.entry, step.stamp))
        return step if damage is None else step._replace(problem=damage)

    def _look(self, name: str, entry: StepEntry) -> Step | None:
        known = self._known.get(name)
        if known is not None and entry.stamp is not None and known.stamp == entry.stamp:
            return known
        number = step_from_name(name)
        if entry.stamp == UNREAD_STAMP:
            return self._look(name, entry._replace(stamp=self._place.stamp(name)))
        if number is None or entry.stamp is None:
            foreign = self._foreign(name, entry)
            if foreign is not None or number is None or entry.is_file:
                return foreign
        path = self._place.path_of(name)
        step = Step(number, name, path, entry.stamp, None, "not finished", is_link=entry.is_link)
        return step if entry.stamp is None else _read(step)

    def _foreign(self, name: str, entry: StepEntry) -> Step | None:
        known = self._known.get(name)
        if known is not None and known.stamp == _FOREIGN:
            return known
        path = self._place.path_of(name)
        found = foreign_step(name, path, is_file=entry.is_file)
        if found is None:
            return None
        problem = f"saved by {found.tool}"
        step = Step(
            found.step,
            name,
            path,
            _FOREIGN,
            None,
            problem,
            found.format,
            found.tool,
            entry.is_link,
            found.saved,
        )
        if entry.stamp is not None:  # `checkpoint_7` with an index of cordwood's
            read = _read(step)
            return read._replace(stamp=_FOREIGN) if read.damaged else step
        return step


def _same(before: Mapping[str, StepEntry], after: Mapping[str, StepEntry]) -> bool:
    """Return True if the same entries lie there, and the same of them have an index."""
    return before.keys() == after.keys() and all(
        entry == after[name] or (after[name].stamp == UNREAD_STAMP and entry.stamp is not None)
        for name, entry in before.items()
    )


def _every(_: int) -> bool:
    return True


def _wanted(numbers: Callable[[int], bool]) -> Callable[[str], bool]:
    """Return a function that tells whether a name is that of a step of one of the numbers."""

    def is_wanted(name: str) -> bool:
        number = step_in_name(name)
        return number is not None and numbers(number)

    return is_wanted


def _best_of_each(groups: Iterator[list[Step]]) -> list[Step]:
    return [max(group, key=_rank) for group in groups]


def _rank(step: Step) -> tuple[bool, bool, bool]:
    return step.whole, step.counts, step_from_name(step.entry) is not None


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
            return step._replace(problem="saved by cordwood.save", tool="cordwood.save")
        record = decode_record(text, f"{where}: {KEY}")
        problem = wrong_step(record, step.entry) if record.step != step.step else ""
        return step._replace(record=record, problem=problem and _DAMAGED + problem)
    except OSError as e:  # which may pass: to be read again the next time
        return step._replace(problem=f"{_UNREAD}{e}", stamp=object())
    except UnsupportedFormatError as e:  # nothing is wrong with it
        return step._replace(problem=_NEWER + str(e))
    except (CorruptionError, FormatError) as e:
        return step._replace(problem=_DAMAGED + str(e).splitlines()[0])
