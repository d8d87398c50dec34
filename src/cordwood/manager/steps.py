"""The steps in a root, of managers and of other tools, and their states, read from disk.

One file, because which entry is a step, whose it is and what state it is in is read together;
a summary, for people, is what was read in other words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from cordwood.api.detect import detect_at
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    UnsupportedFormatError,
)
from cordwood.formats.detect_format import format_in, steps_in
from cordwood.formats.format_protocol import Place
from cordwood.formats.load_format import collector_of, run_reader_of
from cordwood.formats.orbax.locate_trees import is_unfinished
from cordwood.formats.orbax.saved_metrics import saved_metrics
from cordwood.formats.packs.cordwood_json import RULES, data_bytes_of, decode_index
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.stored_step import (
    KEY,
    Record,
    decode_record,
    encode_record,
    is_named_step,
    listed,
    number_in_name,
    parse_step_name,
    sorted_steps,
    step_in_name,
    step_name,
    wrong_step,
)
from cordwood.formats.table import DEFAULT, ORBAX, ZARR
from cordwood.policies.saved_step import SavedStep
from cordwood.storage.directories import modified_seconds, size_on_disk
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.step_storage import StepEntry, StepStorage, StoredRecord
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import run_tasks

_ATTEMPTS = 20  # to read a root at one moment, with no change meanwhile
_DAMAGED = "damaged: "
_NEWER = "of a newer version: "
_UNREAD = "it cannot be read: "
_FOREIGN = "foreign"  # the stamp of steps that another tool has saved
OURS = "cordwood.save"  # the tool of steps that no manager saved, and cordwood wrote
_TOOLS = {"packs": OURS, "zarr": "eFormer"}  # by the format; of others, the format
# The files that eFormer writes last: its Checkpointer, and its AsyncCheckpointManager alone.
_EFORMER_LAST = ("metadata.json", "checkpoint_metadata.json")
_MAX_UNSUMMARIZED = 16  # steps of an object store that are read one by one
_MAX_SUMMARIZED_RECORD = 4096  # characters; longer ones are read from the index
_MAX_DETECTED = 1000  # entries of a root without steps
_MAX_OTHERS = 100
_DIGIT = re.compile(r"[0-9]")


class Step(NamedTuple):
    """An entry of the root that is named as a step: a directory or a file."""

    step: int
    entry: str  # its name in the root
    location: Location
    stamp: Hashable | None  # changes with its index; None: no save to it has finished
    record: Record | None  # None: not saved by a manager
    problem: str  # why policies ignore it; "" if they do not
    format: str | None = None  # of a file, as `cordwood.load` takes it
    tool: str = ""  # the tool that saved it, unless a manager did
    is_link: bool = False  # a symbolic link
    foreign_metrics: SavedStep | None = None  # metrics that another tool has saved
    data_bytes: int | None = None  # the size of the data files of its index, also shared ones

    @property
    def path(self) -> str:
        """Its path or URL as text, for messages and reports."""
        return str(self.location)

    @property
    def finished(self) -> bool:
        """True if there is a checkpoint, in whatever state."""
        return self.stamp is not None

    @property
    def identity(self) -> Hashable | None:
        """A value that changes when the step is saved again, but not when metrics are added."""
        return self.stamp if self.record is None else self.record.time

    @property
    def damaged(self) -> bool:
        """True if it is known to be damaged."""
        return self.finished and self.problem.startswith(_DAMAGED)

    @property
    def whole(self) -> bool:
        """True if it is finished and not known to be damaged; perhaps a newer cordwood saved it."""
        return self.finished and not self.damaged

    @property
    def is_read(self) -> bool:
        """True if its index was read; False if the disk failed, perhaps for a while only."""
        return not self.problem.startswith(_UNREAD)

    @property
    def in_the_way(self) -> str:
        """The reason why a save cannot replace this entry; "" if it can."""
        if self.entry != step_name(self.step):
            return ""
        if self.tool:
            return f"it was saved by {self.tool}, and is not replaced: move it away"
        if self.is_link:
            return "it is a symbolic link, and is not written through: move it away"
        return ""

    def require_known(self) -> None:
        """Raise an error unless this is the step that its name says.

        Raises:
            UnsupportedFormatError: a newer version saved it, so this version cannot know.
            CorruptionError: it has the record of another step.
        """
        if self.problem.startswith(_NEWER):
            raise UnsupportedFormatError(f"{self.path}: step {self.step} is {self.problem}")
        if self.record is not None and self.record.step != self.step:
            raise CorruptionError(f"{self.path}: step {self.step} is {self.problem}")

    @property
    def counts(self) -> bool:
        """True if policies apply to it: a manager has saved it, and it has no problem."""
        return self.record is not None and not self.problem

    @property
    def saved(self) -> SavedStep | None:
        """The step as policies see it; None if they ignore it.

        A step of another tool that has metrics is compared with other steps, and never deleted.
        """
        if self.counts:
            assert self.record is not None
            return SavedStep(self.step, self.record.time, self.record.metrics)
        return self.foreign_metrics if self.whole else None

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics; {} if none were saved."""
        source = self.foreign_metrics if self.record is None else self.record
        return {} if source is None else dict(source.metrics)


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
        self._damaged: dict[tuple[str, Hashable | None], str] = {}
        self._summarized: Mapping[str, StoredRecord] = {}  # as last read or written

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
            number = step_in_name(name)
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
                if down_to is not None and down_to(max(group, key=_rank)):
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
            self._damaged[step.entry, step.stamp] = _DAMAGED + why

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
        if len(unread) > _MAX_UNSUMMARIZED:
            self._summarized = self.storage.read_records()
            for name in unread:
                record = self._summarized.get(name)
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
        number = step_in_name(name)
        assert number is not None
        location, size = self.storage.location_of(name), record.data_bytes
        step = Step(number, name, location, record.stamp, None, "", data_bytes=size)
        return _with_record(step, record.text)

    def summarize(self) -> None:
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
                if len(text) <= _MAX_SUMMARIZED_RECORD:
                    records[step.entry] = StoredRecord(step.stamp, text, step.data_bytes)
        new = sum(self._summarized.get(name) != record for name, record in records.items())
        if new > _MAX_UNSUMMARIZED:
            self.storage.write_records(records)
            self._summarized = records

    def _read_all(
        self, entries: Mapping[str, StepEntry], ahead: Mapping[str, Step | None]
    ) -> Iterator[list[Step]]:
        names: dict[int, list[str]] = {}
        for name in entries:
            number = step_in_name(name)
            assert number is not None
            names.setdefault(number, []).append(name)
        for number in sorted(names, reverse=True):
            looked = [
                ahead[name] if name in ahead else self._look(name, entries[name])
                for name in names[number]
            ]
            steps = [step for step in looked if step is not None]
            for step in steps:
                self._steps[step.entry] = step
            if steps:
                yield [self._with_damage(step) for step in steps]

    def _with_damage(self, step: Step) -> Step:
        damage = self._damaged.get((step.entry, step.stamp))
        return step if damage is None else step._replace(problem=damage)

    def _look(self, name: str, entry: StepEntry) -> Step | None:
        cached = self._steps.get(name)
        if cached is not None and entry.stamp is not None and cached.stamp == entry.stamp:
            return cached
        number = step_in_name(name)
        is_ours = number is not None and name == step_name(number)
        if number is None or not is_ours or entry.stamp is None:
            foreign = self._foreign(name, entry)
            if foreign is not None or number is None or not is_ours or entry.is_file:
                return foreign
        location = self.storage.location_of(name)
        step = Step(
            number, name, location, entry.stamp, None, "not finished", is_link=entry.is_link
        )
        return step if entry.stamp is None else _read(step)

    def _foreign(self, name: str, entry: StepEntry) -> Step | None:
        cached = self._steps.get(name)
        if cached is not None and cached.stamp == _FOREIGN:
            return cached
        step = _step_of_other_tool(name, place_of(self.storage, name), entry)
        if step is None or entry.stamp is None:
            return step
        read = _read(step)  # `checkpoint_7` with an index of cordwood
        return read._replace(stamp=_FOREIGN) if read.damaged else step


def best_of_each(entries: Sequence[Step]) -> list[Step]:
    """Return the best entry of each step, by increasing number."""
    best: dict[int, Step] = {}
    for each in entries:
        if each.step not in best or _rank(each) >= _rank(best[each.step]):
            best[each.step] = each
    return list(best.values())


def _rank(step: Step) -> tuple[bool, bool, bool]:
    return step.whole, step.counts, step.entry == step_name(step.step)


def _read(step: Step) -> Step:
    try:
        data = store_at(step.location).read_index()
        if data is None:  # it has just been deleted
            return step._replace(stamp=None)
        items = decode_index(data)
        step = step._replace(data_bytes=data_bytes_of(items))
        item = items.get("")
        metadata = item.get("metadata") if type(item) is dict else None
        text = metadata.get(KEY) if type(metadata) is dict else None
        if type(text) is not str:
            return step._replace(problem=f"saved by {OURS}", tool=OURS)
        return _with_record(step, text)
    except OSError as e:  # perhaps for a while only: it is read again the next time
        return step._replace(problem=f"{_UNREAD}{e}", stamp=object())
    except UnsupportedFormatError as e:  # it is not damaged
        return step._replace(problem=_NEWER + str(e))
    except (CorruptionError, FormatError) as e:
        return step._replace(problem=_DAMAGED + str(e).splitlines()[0])


def _with_record(step: Step, text: str) -> Step:
    record = decode_record(text, f"{step.path}/{RULES.index_name}: {KEY}")
    problem = wrong_step(record, step.entry) if record.step != step.step else ""
    return step._replace(record=record, problem=problem and _DAMAGED + problem)


# Steps that other tools have saved, and checkpoints that are no steps


def place_of(storage: StepStorage, entry: str) -> Place:
    """Return the place of an entry; in an object store with what was listed of it last."""
    return Place(storage.location_of(entry), directory=storage.directory(entry))


def _step_of_other_tool(name: str, place: Place, entry: StepEntry) -> Step | None:
    """Return the step of another tool that an entry named as a step is; None if it is none.

    `100` is of Orbax, or of `cordwood.save`; `checkpoint_100` of Flax, `run-100` of eFormer.
    """
    parsed = parse_step_name(name)
    if parsed is None or not parsed.is_entry:
        return None
    word, number, _ = parsed
    metrics = None
    finished = True
    if entry.is_file:
        if word != "checkpoint_":
            return None
        tool = "Flax"
    elif place.directory is None and isinstance(place.location, Url):
        return None
    else:
        try:
            # A deletion that was interrupted leaves the index for other readers alone.
            has_content = not {*RULES.sidecars}.issuperset(place.names)
            format = format_in(place) if has_content else None
            if format is None:
                return None
            finished = not (format.runs and run_reader_of(format).is_unfinished_at(place))
            stored = saved_metrics(place) if format is ORBAX and finished else None
            metrics = None if stored is None else SavedStep(number, *stored)
            if word == "run-" and not any(map(place.has, _EFORMER_LAST)):
                return None  # its save has not finished
        except (OSError, CordwoodError):
            return None
        tool = _TOOLS.get(format.name, format.name)
    return Step(
        number,
        name,
        place.location,
        _FOREIGN if finished else None,
        None,
        f"saved by {tool}" if finished else f"{tool} did not finish its save",
        "msgpack" if entry.is_file else None,
        tool,
        entry.is_link,
        metrics,
    )


class OtherCheckpoint(NamedTuple):
    """An entry of a root that is a checkpoint, or is named like one, but is not named as a step."""

    name: str
    format: str  # as `cordwood.detect` returns it; "" if only the name suggests it
    description: str = ""  # in words


def other_checkpoints(place: StepStorage, *, steps: Collection[str]) -> list[OtherCheckpoint]:
    """Return the checkpoints in a root that managers do not treat as steps.

    These are the entries that `detect` recognises, whatever their names, and entries with names
    that look like steps, such as `ckpt_20`.

    Args:
        place: the root.
        steps: the names of the entries that are steps, which are left out.
    """
    entries = place.entries(lambda name: name not in steps)
    numbered = sorted_steps(entries, extra=[name for name in entries if _DIGIT.search(name)])
    names = [*numbered, *sorted(entries.keys() - set(numbered))]
    others = []
    for name in names[:_MAX_DETECTED]:
        other = _other(name, place_of(place, name), entries[name])
        if other is not None:
            others.append(other)
        if len(others) == _MAX_OTHERS:
            break
    return others


def _other(name: str, place: Place, entry: StepEntry) -> OtherCheckpoint | None:
    """Return an entry of a root as a checkpoint; None if it is not one."""
    if is_unfinished(name):
        return None
    format, description = "", ""
    with suppress(OSError, CordwoodError):
        if isinstance(place.location, LocalPath):
            format, description = detect_at(place.location)[:2]
        elif entry.stamp is not None:
            format, description = DEFAULT.name, DEFAULT.description
        elif place.directory is not None:
            detected = format_in(place)
            steps = [] if detected is not None else steps_in(place)
            if detected is not None:
                format, description = detected.name, detected.description
            elif steps:
                format, description = "steps", f"a directory of steps: {listed(steps)}"
    if not format:
        is_named = step_in_name(name) is None and bool(sorted_steps([name]))
        return (
            OtherCheckpoint(name, "") if is_named and not (entry.is_file and "." in name) else None
        )
    if format == ZARR.name and step_in_name(name) is not None:
        description += f", without the {_EFORMER_LAST[0]} that eFormer writes last"
    return OtherCheckpoint(name, format, description)


# Summaries for people: format, size, time, metrics, problem

_NO_STEP = "CheckpointManager does not restore it: it reads the names 100, checkpoint_100, run-100"

State: TypeAlias = Literal["whole", "unfinished", "damaged", "unreadable"]


class StepSummary(NamedTuple):
    """A checkpoint in the root of a run."""

    step: int | None
    name: str
    format: str  # "" if it is not complete
    disk_bytes: int | None  # at a URL of the data files that its index names; None if unknown
    time: float | None  # start of its save, or else last modification; seconds since 1970
    metrics: Mapping[str, float]
    pinned: bool
    problem: str  # why it is incomplete or damaged; "" if it is not
    note: str  # why CheckpointManager does not restore or delete this complete step, or ""
    state: State = "whole"


def summarize_steps(root: Location, names: Sequence[str]) -> list[StepSummary]:
    """Return a summary of each step; of a step only its index is read.

    Args:
        root: the directory or URL of the run.
        names: the names of its steps, as `detect` returns them.
    """
    is_url = isinstance(root, Url)
    storage = open_step_storage(root, RULES)
    entries = {each.entry: each for each in Steps(storage).entries(start=0) if each.finished}
    steps = []
    for name in names:
        child = root.child(name)
        entry = entries.get(name)
        time = modified_seconds(child)
        metrics: Mapping[str, float] = {}
        format, problem, note = "", "", _NO_STEP
        state: State = "whole"
        if entry is not None:
            saved = entry.saved if entry.counts else entry.foreign_metrics
            if saved is not None:
                time, metrics = saved.time or time, dict(saved.metrics)
            note = "" if entry.counts else f"{entry.problem}: no policy deletes it"
            if entry.damaged:
                problem, note, state = entry.problem, "", "damaged"
        try:
            # Asking an object store again would be one request for each step.
            is_ours = is_url and entry is not None and not entry.tool
            format = DEFAULT.name if is_ours else detect_at(child).format
        except (CordwoodError, OSError) as e:
            note = ""
            if not problem:
                problem, state = str(e), "unreadable" if isinstance(e, OSError) else "damaged"
                if isinstance(e, IncompleteCheckpointError):
                    state = "unfinished"
        known_bytes = None if entry is None else entry.data_bytes
        disk_bytes = known_bytes if is_url else size_on_disk(child)
        pinned = entry is not None and storage.in_use(name)
        number = number_in_name(name)
        steps.append(
            StepSummary(
                number, name, format, disk_bytes, time, metrics, pinned, problem, note, state
            )
        )
    return steps
