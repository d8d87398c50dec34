"""The steps that the processes of a job hold together, each in a root of its own.

A step is there if every file that its index names is in some root, or in the mirror. No process
finds that out alone: `adopt` gets the survey that all have made together, and from then on commits
and deletions, which all agree on, change it alike on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from cordwood.errors import CordwoodError, StepError, UnsupportedFormatError
from cordwood.formats.load_format import records_of, step_files_of, storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.manager.missing_steps import missing_step_error
from cordwood.manager.steps import Steps
from cordwood.manager.unshared.root_report import PeerRoot, RunSurvey
from cordwood.manager.unshared.take_inventory import take_inventory
from cordwood.message_text import counted, first_names
from cordwood.plan.recovery.complete_steps import CompleteStep, IncompleteStep, survey_steps
from cordwood.plan.recovery.holder_order import FileHolders, holders_of_files, order_holders
from cordwood.plan.recovery.position_runs import runs_of
from cordwood.processes.key_value_store import current_processes
from cordwood.processes.process_error_texts import process_names
from cordwood.storage.directories import file_sizes
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import HeldStep, Holder, LocalPath, Location
from cordwood.storage.peers.peer_file import PeerConnections, PeerFile
from cordwood.storage.peers.peer_step import PeerStep
from cordwood.storage.step_storage import Removal, StepEntry, StoredRecord
from cordwood.threads.log import log

_MAX_SHOWN = 4


class UnsharedStorage:
    """The steps of a run whose processes have a root each, as one process sees them.

    Args:
        root: the root of this process.
        on_problem: called with the name of a place that failed, and the error.

    Attributes:
        root: the root of this process.
        peers: the processes, once all have met.
        mirror: returns the location of a step in the mirror by its number; None: no mirror.
        in_use_elsewhere: the entries that other processes need, as far as is known: they have
            pinned them, or replicate them, or have replicated no newer ones.
    """

    def __init__(
        self, root: LocalStepStorage, on_problem: Callable[[str, Exception], None] | None = None
    ) -> None:
        self.root = root
        self.peers: Sequence[PeerRoot] = ()
        self.mirror: Callable[[int], Location] | None = None
        self.in_use_elsewhere: Collection[str] = ()
        self._on_problem = on_problem
        self._index = 0  # of this process
        self._held: dict[str, CompleteStep] | None = None  # by entry; None: nobody has met yet
        self._lost: dict[str, tuple[str, str]] = {}  # of entries: the save, and what is missing
        self._locations: dict[str, LocalPath] = {}
        self._changes: dict[str, int] = {}  # how often metrics were added to each entry

    @property
    def index(self) -> int:
        """The number of this process."""
        return self._index

    @property
    def has_met(self) -> bool:
        """True once the processes have met."""
        return self._held is not None

    @property
    def held(self) -> Mapping[str, CompleteStep]:
        """The steps that are complete, by entry. Raises StepError before the processes have met."""
        return self._writable()

    def _writable(self) -> dict[str, CompleteStep]:
        if self._held is None:
            if current_processes().count > 1:
                raise StepError(
                    f"{self.location}: with shared=False the steps are what all processes hold "
                    "together, and they have not met yet: call restore or save first, on every "
                    "process"
                )
            survey = survey_steps([take_inventory(self.root)])
            self.adopt(RunSurvey([], *survey), 0, {})
        assert self._held is not None
        return self._held

    def adopt(self, survey: RunSurvey, index: int, missing: Mapping[str, Sequence[str]]) -> None:
        """Take over a survey that all processes have made together.

        Args:
            survey: the survey.
            index: the number of this process.
            missing: of lost steps, the names of the missing files by entry, as far as known.
        """
        self.peers, self._index, self._locations = survey.peers, index, {}
        self._held = {step_name(each.step): each for each in survey.complete}
        self._lost = {}
        for each in survey.incomplete:
            entry = step_name(each.step)
            self._lost[entry] = each.index_digest, _lost_text(each, missing.get(entry))

    def add(self, number: int) -> None:
        """Add a step that every process has just committed in its own root."""
        entry = step_name(number)
        index = storage_of(DEFAULT).store_at(self.root.location_of(entry)).read_index()
        assert index is not None
        lister = step_files_of(DEFAULT)
        files = lister.read_step_files(index)
        positions: dict[int, list[int]] = {}
        for position, name in enumerate(files.sizes):
            writer = lister.writer_of(name)
            assert writer is not None
            positions.setdefault(writer.process, []).append(position)
        held = {process: runs_of(each) for process, each in positions.items()}
        step = CompleteStep(number, files.save, files.saved_at, len(files.sizes), held, False)
        self._writable()[entry] = step
        self._lost.pop(entry, None)
        self._locations.pop(entry, None)

    def numbers(self) -> list[int]:
        """Return the numbers of the steps that are complete."""
        return sorted([each.step for each in self.held.values()])

    def follow(self, numbers: Collection[int]) -> None:
        """Take over which steps are complete, as process 0 has sent it after a commit."""
        entries = {step_name(number): number for number in numbers}
        for entry in [entry for entry in self.held if entry not in entries]:
            del self._writable()[entry]
        for entry, number in entries.items():
            if entry not in self.held and self.root.stamp(entry) is not None:
                self.add(number)

    def drop_absent(self, numbers: Iterable[int]) -> None:
        """Forget steps that all roots delete now, if this root has no part of them.

        Otherwise their indexes would be read from roots that have deleted them.
        """
        for entry in map(step_name, numbers):
            if self.root.stamp(entry) is None:
                self._writable().pop(entry, None)

    def lost_steps(self) -> list[int]:
        """Return the numbers of the steps of which files are nowhere."""
        numbers = [step_in_name(entry) for entry in self._lost]
        return sorted([number for number in numbers if number is not None])

    def remove_lost(self, spared: Collection[int]) -> list[int]:
        """Remove what this root holds of incomplete steps that are older than the newest complete.

        What cannot be read here, as that of a newer cordwood, is no such step, and stays.

        Args:
            spared: numbers of steps that stay.

        Returns the numbers of what was removed.
        """
        newest = max([each.step for each in self.held.values()], default=-1)
        entries = [
            entry
            for entry, each in self.root.entries(_is_step).items()
            if each.stamp is not None
            and entry not in self.held
            and (number := step_in_name(entry)) is not None
            and number < newest
            and number not in spared
            and _is_part_of_step(self.root.location_of(entry))
        ]
        removed = self.root.remove(entries, partly=True).removed
        for entry in removed:
            self._lost.pop(entry, None)
        return sorted([number for entry in removed if (number := step_in_name(entry)) is not None])

    def require(self, number: int) -> None:
        """Raise FileNotFoundError unless a step is complete."""
        if step_name(number) not in self.held:
            raise missing_step_error(Steps(self), number)

    def part_of(self, number: int) -> Steps | None:
        """Return the steps of the root of this process alone, if it holds the index of a step."""
        return None if self.root.stamp(step_name(number)) is None else Steps(self.root)

    def index_size(self, number: int) -> int:
        """Return the size of the index of a step in the root of this process; 0 if it has none."""
        return file_sizes(str(self.root.location_of(step_name(number)))).get(DEFAULT.index_name, 0)

    def change_index(self, number: int, sizes: Sequence[int]) -> None:
        """Read the index of a step again, because metrics were added to it in each root.

        Args:
            number: the step.
            sizes: the new size of the index in the root of each process; 0: it has none.
        """
        entry = step_name(number)
        self._locations.pop(entry, None)
        self._changes[entry] = self._changes.get(entry, 0) + 1
        self.peers = [
            peer._replace(index_sizes={**peer.index_sizes, number: size}) if size else peer
            for peer, size in zip(self.peers, sizes, strict=False)  # one process has no peers
        ]
        self.location_of(entry)

    @property
    def location(self) -> LocalPath:
        return self.root.location

    def location_of(self, entry: str) -> LocalPath:
        step = None if self._held is None else self._held.get(entry)
        if step is None:
            return self.root.location_of(entry)
        if entry not in self._locations:
            self._locations[entry] = self._locate(entry, step)
        return self._locations[entry]

    def _locate(self, entry: str, step: CompleteStep) -> LocalPath:
        """Return the location of a complete step, with the places that hold its files."""
        path = self.root.location_of(entry)
        runs = step.files.get(self._index, ())
        is_here = runs == ((0, step.file_count),)
        if not self.peers or (is_here and len(step.files) == 1):  # no other root has any of it
            return path
        index, unread = self._read_index(entry, step)
        if unread:
            return LocalPath(path.text, held=HeldStep(b"", {}, unread=unread))
        sizes = step_files_of(DEFAULT).read_step_files(index).sizes
        holders: FileHolders = holders_of_files(step.files, list(sizes.values()))
        hosts = [peer.host for peer in self.peers]
        orders = order_holders(holders, self._index, hosts)
        mirror: list[Holder] = []
        if step.is_mirrored and self.mirror is not None:
            mirror = [self.mirror(step.step)]
        places = {
            name: [*[self._place(entry, process) for process in order], *mirror]
            for name, order in zip(sizes, orders, strict=True)
        }
        return LocalPath(path.text, held=HeldStep(index, places, self._on_problem))

    def _place(self, entry: str, process: int) -> Holder:
        if process == self._index:
            return self.root.location_of(entry)
        peer = self.peers[process]
        return PeerStep(peer.address, peer.token, entry, f"process {process} on {peer.host}")

    def _read_index(self, entry: str, step: CompleteStep) -> tuple[bytes, str]:
        """Return the index of a step, from this root or another; or why nobody gives it."""
        failures: list[str] = []
        holders = [
            each
            for each, peer in enumerate(self.peers)
            if each != self._index and step.step in peer.index_sizes
        ]
        holders.sort(key=lambda each: each not in step.files)  # some may have another save's
        for process in (self._index, *holders):
            place = self._place(entry, process)
            try:
                index = self._index_at(place, step.step, process)
                if index is None:
                    continue
                if step_files_of(DEFAULT).read_step_files(index).save == step.index_digest:
                    return index, ""
            except (CordwoodError, OSError) as e:
                failures.append(f"{place}: {e}")
                if self._on_problem is not None:
                    self._on_problem(str(place), e)
        return b"", "; ".join(["its index could not be read from any root", *failures])

    def _index_at(self, place: Holder, number: int, process: int) -> bytes | None:
        """Return the index of a step in the root of a process; None if it has none."""
        if not isinstance(place, PeerStep):
            return storage_of(DEFAULT).store_at(place).read_index()
        size = self.peers[process].index_sizes[number]
        with PeerFile(place, DEFAULT.index_name, size, PeerConnections()) as file:
            return file.read(0, size)

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        held = self.held
        here = self.root.entries(matches)
        entries: dict[str, StepEntry] = {}
        for entry, step in held.items():
            if matches(entry):
                stamp = here[entry].stamp if entry in here else None
                entries[entry] = StepEntry(self._stamp(entry, step, stamp))
        for entry, (save, text) in self._lost.items():
            if matches(entry) and entry not in entries:
                entries[entry] = StepEntry(("lost", save), problem=text)
        for entry, each in here.items():
            if entry not in entries:
                entries[entry] = each._replace(stamp=None, problem="it is part of no complete step")
        return entries

    def stamp(self, entry: str) -> Hashable | None:
        step = self.held.get(entry)
        return None if step is None else self._stamp(entry, step, self.root.stamp(entry))

    def _stamp(self, entry: str, step: CompleteStep, own: Hashable | None) -> Hashable:
        return step.index_digest, own, self._changes.get(entry, 0)

    def directory(self, entry: str) -> None:
        """Return None."""

    def flush(self, entry: str) -> None:
        if self.root.stamp(entry) is not None:
            self.root.flush(entry)

    def read_records(self) -> Mapping[str, StoredRecord]:
        return {}

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        """Do nothing."""

    def remove(self, entries: Iterable[str], *, partly: bool = False) -> Removal:
        names = list(entries)
        result = self.root.remove(names, partly=partly)
        not_removed = {*result.in_use, *result.refused, *result.failed}
        for entry in names:
            if entry in not_removed:
                continue
            is_step = self._writable().pop(entry, None) is not None
            self._lost.pop(entry, None)
            if is_step and entry not in result.removed:  # this root had no part of it
                result.removed.append(entry)
        result.removed.sort(key=names.index)
        return result

    def set_aside(self, entry: str) -> str:
        return self.root.set_aside(entry)

    def in_use(self, entry: str) -> bool:
        return entry in self.in_use_elsewhere or self.root.in_use(entry)

    def has_temporaries(self, entry: str) -> bool:
        return self.root.has_temporaries(entry)

    def pin(self, entry: str) -> AbstractContextManager[None]:
        if self.root.stamp(entry) is None:
            raise UnsupportedFormatError(
                f"{self.root.location_of(entry)}: the root of this process holds no part of the "
                "step, so it cannot be pinned here"
            )
        return self.root.pin(entry)

    def remove_leftovers(self, *, spared: str = "") -> None:
        self.root.remove_leftovers(spared=spared)

    def remove_empty(self, entry: str) -> bool:
        return self.root.remove_empty(entry)

    def has_leftovers(self, entry: str) -> bool:
        return self.root.has_leftovers(entry)


def _is_step(name: str) -> bool:
    number = step_in_name(name)
    return number is not None and name == step_name(number)


def _is_part_of_step(location: LocalPath) -> bool:
    """Return True if a directory holds what a process with a root of its own has saved."""
    try:
        index = storage_of(DEFAULT).store_at(location).read_index()
        return index is not None and records_of(DEFAULT).read_step_index(index).is_unshared
    except (CordwoodError, OSError):
        return False


def _lost_text(step: IncompleteStep, names: Sequence[str] | None) -> str:
    """Return what is missing of a step."""
    count = sum([stop - start for start, stop in step.missing])
    which = f" ({first_names(names, _MAX_SHOWN)})" if names else ""
    return (
        f"{count} of its {counted(step.file_count, 'file')} are nowhere{which}; the roots of "
        f"{process_names(step.processes)} have its index. It can be restored again once the roots "
        "that hold them are passed, or from a mirror"
    )


def log_lost(root: str, numbers: Sequence[int]) -> None:
    """Log a line about the parts of incomplete steps that were removed; nothing if none were."""
    if numbers:
        text = "%s: removed what was left here of the incomplete steps %s: a newer one is complete"
        log.info(text, root, ", ".join(map(str, numbers)))
