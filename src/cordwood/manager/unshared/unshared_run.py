"""The rounds in which processes with roots of their own agree on the steps that they hold together.

- They *meet* before the first save, and before each restore: once no other manager uses a root,
  each sends the address of its server and the inventory of its root; process 0 answers with the
  steps that are complete.
- They *settle* each save: once every process has committed its part, process 0 counts the step as
  complete, and says which steps are deleted now. Then each deletes them in its own root.
- They *part* at the end: the servers run until process 0 has copied what the mirror is to hold.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cordwood.errors import CordwoodError, ProcessError, StepError
from cordwood.formats.load_format import step_files_of, storage_of
from cordwood.formats.step_names import step_name
from cordwood.formats.table import DEFAULT
from cordwood.manager.delete_steps import Settlement, StepCleaner
from cordwood.manager.manager_problem import ManagerProblem
from cordwood.manager.problem_log import ProblemLog
from cordwood.manager.step_holder import StepHolder
from cordwood.manager.unshared.replica_copies import ReplicaCopies
from cordwood.manager.unshared.replica_options import ReplicaOptions
from cordwood.manager.unshared.replica_progress import ReplicaProgress
from cordwood.manager.unshared.root_report import PeerRoot, RootReport, RunSurvey
from cordwood.manager.unshared.take_inventory import mirrored_step, take_inventory
from cordwood.manager.unshared.unshared_storage import UnsharedStorage, log_lost
from cordwood.plan.recovery.complete_steps import survey_steps
from cordwood.plan.recovery.position_runs import PositionRuns
from cordwood.plan.recovery.step_inventory import StepInventory
from cordwood.plan.recovery.step_places import StepPlaces, places_of
from cordwood.processes.host_address import host_address, host_name
from cordwood.processes.key_value_store import current_processes
from cordwood.processes.process_error_texts import process_names
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.wait_for_arrivals import WAKE_SECONDS
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locks.root_probe import RootProbe
from cordwood.storage.peers.peer_server import PeerServer
from cordwood.threads.log import log
from cordwood.threads.stop_check import POLL_SECONDS, check_stop
from cordwood.threads.wait_logger import WaitLogger

_TOKEN_BYTES = 24
ROOT_WAIT_SECONDS = 10.0  # for another manager of the root, which may be ending
UNMET = "the roots that processes do not share"  # until the root of process 0 is known


class UnsharedRun:
    """The steps of a run whose processes have a root each.

    Args:
        root: the root of this process.
        problems: gets what fails.
        replicas: how many other processes hold each file, and where.

    Attributes:
        storage: the steps.
        replicas: the files of other processes that this one holds; None: none.
        mirror: the mirror, as a place to restore from; None: there is none.
    """

    def __init__(
        self, root: LocalStepStorage, problems: ProblemLog, replicas: ReplicaOptions
    ) -> None:
        self.storage = UnsharedStorage(root, self._report)
        self.replicas: ReplicaCopies | None = None
        if replicas.replicas:
            self.replicas = ReplicaCopies(self.storage, replicas, problems)
        self._copies = replicas.replicas + 1  # of each file
        self._progress: ReplicaProgress | None = None  # with replicas, once there are others
        self.mirror: StepHolder | None = None
        self._problems = problems
        self._root = root.location
        self._server: PeerServer | None = None
        self._probe: RootProbe | None = None  # while the manager is open
        self._token = ""
        self._group: ProcessGroup

    def use_mirror(self, mirror: StepHolder) -> None:
        """Restore from a mirror what no root holds."""
        self.mirror = mirror
        storage = mirror.steps.storage
        self.storage.mirror = lambda number: storage.location_of(step_name(number))

    def use_group(self, group: ProcessGroup) -> None:
        """Take the group of the manager, whose purposes become the same on all processes."""
        self._group = group
        group.root = UNMET

    def meets_first(self, *, is_open: bool) -> bool:
        """Return True if the processes must meet before a call: for the first one, for example.

        Args:
            is_open: True if others are to read from this root then; a closed manager has no server.
        """
        return not self.storage.has_met or (is_open and self._probe is None)

    def meet(self, *, is_open: bool) -> None:
        """Agree with the other processes on the steps that all hold together.

        Args:
            is_open: False after the manager was closed.

        Raises:
            ProcessError: on every process: two roots are one directory, or another manager uses
                one of them.
            StepError: the manager is closed, so that others cannot read from this root.
        """
        if not is_open and current_processes().count > 1:
            raise StepError(
                f"{self._root}: this manager is closed, and serves its root no longer to the other "
                "processes: restore before it is closed, or open it again on every process: "
                "with manager: ..."
            )
        try:
            with self._group.rendezvous("bring together the steps of") as rendezvous:
                self._meet(rendezvous, self._probe or RootProbe(self._root))
        finally:
            if not is_open:
                self.close()

    def _meet(self, rendezvous: Rendezvous, probe: RootProbe) -> None:
        self._probe = probe
        probes = rendezvous.exchange(probe.name, list)
        users = self._users_of_root(probe, probes, rendezvous)
        steps = take_inventory(self.storage.root)  # another manager may have saved until now
        report = RootReport(self._peer_root(probe.name, steps, rendezvous), steps)
        survey = RunSurvey.decode(rendezvous.exchange((users, report.encode()), self._survey))
        names = self._missing_names(survey, rendezvous.index)
        missing = rendezvous.exchange(names, _joined)
        self.storage.adopt(survey, rendezvous.index, missing)
        if rendezvous.count > 1:
            self._group.root = f"{survey.peers[0].root} (shared=False)"
            if self.replicas is not None:
                copies = min(self._copies, rendezvous.count)
                self._progress = ReplicaProgress(survey.complete, copies)

    def places(self) -> dict[int, StepPlaces]:
        """Return the places of each complete step, by number, as of the last meeting."""
        hosts = [peer.host for peer in self.storage.peers]
        return {each.step: places_of(each, hosts) for each in self.storage.held.values()}

    def _peer_root(
        self, probe: str, steps: Sequence[StepInventory], rendezvous: Rendezvous
    ) -> PeerRoot:
        if self._server is None and rendezvous.count > 1:
            self._token = secrets.token_urlsafe(_TOKEN_BYTES)
            rules = storage_of(DEFAULT).RULES
            self._server = PeerServer(self._root, rules, self._token, host=host_address())
        address = "" if self._server is None else self._server.address
        index_sizes = {each.step: self.storage.index_size(each.step) for each in steps}
        return PeerRoot(str(self._root), host_name(), address, self._token, probe, index_sizes)

    def _survey(self, messages: list[tuple[tuple[list[int], str], list[Any]]]) -> list[Any]:
        """Return the steps of all roots, on process 0, if each root has one user."""
        _require_apart([users for users, _ in messages])
        reports = [RootReport.decode(report) for _, report in messages]
        numbers = sorted({step.step for report in reports for step in report.steps})
        survey = survey_steps([report.steps for report in reports], self._mirrored(numbers))
        return RunSurvey([report.peer for report in reports], *survey).encode()

    def _mirrored(self, numbers: Sequence[int]) -> list[StepInventory]:
        """Return which of some steps the mirror holds, too."""
        inventory = []
        for number in numbers if self.mirror is not None else ():
            assert self.mirror is not None
            step = self.mirror.find(number)
            try:
                each = None if step is None else mirrored_step(step)
            except (CordwoodError, OSError) as e:
                self.mirror.on_unreadable(e)
                break
            if each is not None:
                inventory.append(each)
        return inventory

    def _users_of_root(
        self, probe: RootProbe, probes: Sequence[str], rendezvous: Rendezvous
    ) -> tuple[list[int], str]:
        """Return who else uses this root: processes of this job, and another manager in words.

        Args:
            probe: that of this process.
            probes: the names of those of all processes.
            rendezvous: the processes.
        """
        processes = [
            process
            for process, name in enumerate(probes)
            if process != rendezvous.index and probe.sees(name)
        ]
        waiting = WaitLogger(f"another manager to close {self._root}")
        while others := [who for name, who in probe.others().items() if name not in probes]:
            if waiting.seconds >= ROOT_WAIT_SECONDS:
                return processes, f"{self._root}, which {others[0]} uses"
            check_stop()
            rendezvous.poll()
            time.sleep(POLL_SECONDS)
        return processes, ""

    def _missing_names(self, survey: RunSurvey, index: int) -> dict[str, list[str]]:
        """Return the names of the files that are nowhere, of steps whose index is here first."""
        names: dict[str, list[str]] = {}
        for each in survey.incomplete:
            if each.processes and each.processes[0] == index:
                entry = step_name(each.step)
                location = self.storage.root.location_of(entry)
                data = storage_of(DEFAULT).store_at(location).read_index()
                if data is not None:
                    files = list(step_files_of(DEFAULT).read_step_files(data).sizes)
                    names[entry] = _at(files, each.missing)
        return names

    def settle(self, rendezvous: Rendezvous, number: int, cleaner: StepCleaner) -> Settlement:
        """Count a step as complete once all processes have committed their part of it.

        Args:
            rendezvous: of the save, in which every process has committed its part.
            number: the step.
            cleaner: says on process 0 which steps are deleted now.
        """
        pinned = [entry for entry in self.storage.held if self.storage.root.in_use(entry)]
        report = None if self.replicas is None else self.replicas.report(before=number)

        def decide(reports: list[tuple[list[str], Any]]) -> list[Any]:
            self.storage.add(number)
            spared = {entry for entries, _ in reports for entry in entries}
            target = None
            if self._progress is not None:
                replicas = [each for _, each in reports]
                target, stay = self._progress.advance(number, replicas, self.storage.numbers())
                spared.update(map(step_name, stay))
            self.storage.in_use_elsewhere = spared
            lost = self.storage.lost_steps()
            settlement = cleaner.agree_on_deletion(lost, time_now=time.time())
            return [self.storage.numbers(), settlement._replace(to_replicate=target)]

        complete, settlement = rendezvous.exchange((pinned, report), decide)
        if rendezvous.index:
            self.storage.follow(complete)
        agreed = Settlement(*settlement)
        self.storage.drop_absent(agreed.deleted)
        return agreed

    def replicate(self, committed: int, settlement: Settlement) -> None:
        """Let the replicas of the step that all have agreed on be fetched in the background."""
        if self.replicas is not None:
            self.replicas.request(committed, settlement.to_replicate)

    def withdraw(self, number: int, rendezvous: Rendezvous) -> None:
        """Remove the part of a failed save that was committed here, if no process counts it.

        Otherwise it stays until a newer step is complete, or the step is saved again.
        """
        entry = step_name(number)
        if entry not in self.storage.held and rendezvous.is_refused():
            self.storage.root.remove([entry], partly=True)

    def make_room(self, number: int) -> None:
        """Move away what this root holds of an incomplete step that is to be saved again."""
        entry = step_name(number)
        if entry not in self.storage.held and self.storage.root.stamp(entry) is not None:
            reason = self.storage.root.set_aside(entry)
            if not reason:
                log.info("%s/%s: what was left of an incomplete step is hidden", self._root, entry)

    def clean(self, settlement: Settlement) -> None:
        """Remove the parts of incomplete steps that nobody needs any longer."""
        log_lost(str(self._root), self.storage.remove_lost(settlement.spared))

    def part(self, seconds_left: Callable[[], float]) -> None:
        """Wait until no process needs what lies in the root of this one any longer.

        Process 0 may still copy it to the mirror, and others to their roots.

        Args:
            seconds_left: returns how long to wait at most.
        """
        if self._server is None or (self.mirror is None and self.replicas is None):
            return
        if not self.storage.has_met:  # the meeting failed: nobody knows this server
            return
        processes = current_processes()
        prefix = f"cordwood/parted/{self.storage.peers[0].probe}"
        readers = range(processes.count) if self.replicas is not None else range(1)
        waiting = WaitLogger("other processes to copy what lies in this root")
        with suppress(ProcessError):  # then there is no process 0
            processes.put(f"{prefix}/{processes.index}", b"")
            for reader in readers:
                while processes.get(f"{prefix}/{reader}", WAKE_SECONDS) is None:
                    if seconds_left() <= 0:
                        return
                    check_stop()
                    waiting.tick()
            waiting.end()

    def close(self) -> None:
        """Stop the server, and let another manager use the root."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()

    def _report(self, place: str, error: Exception) -> None:
        text = f"{place} failed, and is asked last from now on"
        self._problems.add(ManagerProblem(None, text, error))


def _at(names: Sequence[str], runs: PositionRuns) -> list[str]:
    return [name for start, stop in runs for name in names[start:stop]]


def _require_apart(messages: Sequence[tuple[list[int], str]]) -> None:
    """Raise ProcessError if a root has another user."""
    for process, (others, user) in enumerate(messages):
        if others:
            raise ProcessError(
                f"{process_names([*others, process])} have one root, though shared=False was "
                "passed: pass shared=True (the default) for a root that all processes share, or a "
                "root of its own to each process"
            )
        if user:
            raise ProcessError(
                f"another manager is open at {user}: with shared=False a root is for one manager "
                "at a time: close that one first, or pass another root"
            )


def _joined(messages: Sequence[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the names of missing files that processes have sent, by step."""
    return {entry: names for message in messages for entry, names in message.items()}
