"""The replicas that a process holds: files of other processes, fetched from their servers.

A replica is one more file in the directory of a step in the own root. No list says what is
replicated: the next inventory shows it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Hashable, Mapping

from cordwood.copying.missing_files import missing_files
from cordwood.errors import CordwoodError, StorageError
from cordwood.formats.load_format import copier_of, step_files_of, storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.manager.manager_problem import ManagerProblem
from cordwood.manager.problem_log import ProblemLog
from cordwood.manager.unshared.replica_options import ReplicaOptions
from cordwood.manager.unshared.replica_progress import ReplicaReport
from cordwood.manager.unshared.unshared_storage import UnsharedStorage
from cordwood.message_text import counted, size_text
from cordwood.plan.recovery.complete_steps import CompleteStep
from cordwood.plan.recovery.replica_placement import (
    ReplicaPlacement,
    place_replicas,
    replicas_to_fetch,
)
from cordwood.processes.process_error_texts import process_names
from cordwood.storage.directories import file_sizes
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.link_file import link_file
from cordwood.threads.background_task import BackgroundTask
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.stop_check import POLL_SECONDS, check_stop

_FAILURES = (OSError, CordwoodError)
REPLICA_WAIT_SECONDS = 60.0  # `wait` and the end of the block wait no longer for replicas


class ReplicaCopies:
    """The copies of other processes' files that one process makes after commits.

    Args:
        storage: the steps, of which it writes to the part in the root of this process.
        options: how many replicas there are, and where.
        problems: gets what fails.
    """

    def __init__(
        self, storage: UnsharedStorage, options: ReplicaOptions, problems: ProblemLog
    ) -> None:
        self._storage = storage
        self._options = options
        self._problems = problems
        self._committed: int | None = None  # the step that was committed last
        self._target: int | None = None  # the step that all processes replicate
        self._tried: int | None = None  # the last such step that this process has ended with
        self._replicated: set[int] = set()  # changed and copied by single operations
        self._reported: int | None = None  # the step that `wait` has reported last
        self._fetched: set[str] = set()  # the names of files
        self._placement_text = ""  # the problem of the placement that was reported
        self._task = BackgroundTask(self._copy_what_is_due)

    @property
    def newest(self) -> int | None:
        """The newest step of which this process holds all replicas that it is to hold.

        None: of none that was saved since it began.
        """
        return max(self._replicated.copy(), default=None)

    def report(self, *, before: int) -> ReplicaReport:
        """Return what is replicated here, after the commit of a step that cannot be yet.

        There may have been a step of that number, which was deleted.
        """
        self._replicated.discard(before)
        if self._tried == before:
            self._tried = None
        replicated = [each for each in self._replicated.copy() if self._is_held(each)]
        return ReplicaReport(self._tried, sorted(replicated))

    def request(self, committed: int, target: int | None) -> None:
        """Let the files of committed steps be fetched in the background; never wait for that.

        A step whose successor is committed before its turn is skipped.

        Args:
            committed: the step that was committed last.
            target: the step that all processes replicate first; None: there are no others.
        """
        self._committed, self._target = committed, target
        try:
            run_in_worker(self._task.request)
        except (RuntimeError, MemoryError) as e:
            self._tried = target
            self._fail(committed, "no thread could be started to hold replicas", e)

    def wait(self, seconds_left: Callable[[], float]) -> None:
        """Wait for running copies, for REPLICA_WAIT_SECONDS at most; log what is replicated here.

        Args:
            seconds_left: returns how long the caller may still wait; 0 or less to end the wait.
        """
        began = time.monotonic()
        while not self._task.wait(POLL_SECONDS):
            check_stop()
            waited = time.monotonic() - began
            if min(seconds_left(), REPLICA_WAIT_SECONDS - waited) <= 0:
                error = TimeoutError(f"they are still being fetched after a wait of {waited:.1f} s")
                self._fail(self._committed, "the replicas are not waited for any longer", error)
                return
        if self.newest != self._reported:
            self._reported = self.newest
            text = "%s: this process holds its replicas of step %s"
            log.info(text, self._storage.location, self.newest)

    def stop(self) -> None:
        """Let a running copy end early."""
        run_in_worker(self._task.stop)

    def _copy_what_is_due(self) -> None:
        """Fetch the files of the step that all replicate, and then of the newest one."""
        target = self._target
        if target is not None and target != self._tried:
            self._copy(target)
            self._tried = target
        committed = self._committed
        if committed is not None and committed != self._tried:
            self._copy(committed)

    def _copy(self, number: int) -> None:
        """Fetch the files of a step, unless they are here; an error is a problem."""
        if number in self._replicated:
            return
        step = self._storage.held.get(step_name(number))
        if step is None:
            return
        began = time.monotonic()
        try:
            count, fetched = self._hold(step)
        except _FAILURES as e:
            if self._is_held(number):
                self._fail(number, f"step {number} could not be replicated", e)
            return
        except Exception as e:  # noqa: BLE001  (of failure_domain; it is logged with its traceback)
            log.exception("%s: the replicas of step %d", self._storage.location, number)
            self._fail(number, f"step {number} could not be replicated", e)
            return
        self._replicated.add(number)
        log.info(
            "hold replicas of step %d: %s, %s fetched, in %.3f s (%s)",
            number,
            counted(count, "file"),
            size_text(fetched),
            time.monotonic() - began,
            self._storage.root.location_of(step_name(number)),
        )

    def _hold(self, step: CompleteStep) -> tuple[int, int]:
        """Fetch or link the files of a step that this process is to hold.

        Returns their number, and the bytes that were fetched. Raises OSError, CordwoodError.
        """
        index = self._storage.index
        fetches = replicas_to_fetch(step.files, self._placement(), index)
        if not fetches:
            return 0, 0
        entry = step_name(step.step)
        folder = self._storage.root.location_of(entry)
        location = self._storage.location_of(entry)
        data = storage_of(DEFAULT).store_at(folder).read_index()
        if data is None:
            raise FileNotFoundError(f"{folder}: its index is not there")
        content = copier_of(DEFAULT).content_of(data, location, in_pool=False, has_links=True)
        names = list(step_files_of(DEFAULT).read_step_files(data).sizes)
        by_writer: dict[int, dict[str, Source]] = {}
        present = file_sizes(str(folder))
        for position, writer in sorted(fetches.items()):
            name = names[position]
            if present.get(name) != content.files[name].size_bytes:
                by_writer.setdefault(writer, {})[name] = content.files[name]
        stored = self._files_in_root()
        self._fetched.intersection_update(stored)
        failures: list[Exception] = []
        fetched = 0
        for writer, missing in by_writer.items():
            try:
                fetched += self._hold_files(missing, location, folder, stored)
            except _FAILURES as e:
                log.debug("%s: the files of process %d: %s", folder, writer, e)
                failures.append(e)
        if failures:
            raise failures[0]
        return len(fetches), fetched

    def _hold_files(
        self,
        files: Mapping[str, Source],
        location: LocalPath,
        folder: LocalPath,
        stored: Mapping[str, tuple[str, int]],
    ) -> int:
        """Link files that older steps have undamaged, and fetch the others.

        Returns the bytes fetched.

        Args:
            files: the files to hold, by name.
            location: the step, with the places that hold its files.
            folder: the directory of the step in the own root.
            stored: the path and size of each file in the own root.
        """
        missing = {
            name: file
            for name, file in files.items()
            if not (
                name in stored
                and _is_undamaged(stored[name][0], name, file)
                and link_file(stored[name][0], str(folder), name)
            )
        }
        size = sum([file.size_bytes for file in missing.values()])
        self._require_budget(size, stored)
        self._fetched.update(missing)
        copier_of(DEFAULT).write_files(storage_of(DEFAULT).store_at(location), missing, folder)
        return size

    def _require_budget(self, size: int, stored: Mapping[str, tuple[str, int]]) -> None:
        """Raise StorageError if files of that size are too many beside those that are here."""
        limit = self._options.replica_bytes
        if limit is None:
            return
        sizes = {name: size_bytes for name, (_, size_bytes) in stored.items()}
        used = _bytes_of_others(sizes, self._storage.index, self._fetched)
        if used + size > limit:
            raise StorageError(
                errno.ENOSPC,
                f"{size_text(size)} more would be over replica_bytes={limit}: {size_text(used)} of "
                "files of other processes are in this root; raise replica_bytes, or keep fewer "
                "steps",
                str(self._storage.location),
            )

    def _files_in_root(self) -> dict[str, tuple[str, int]]:
        """Return the path and size of each data file of the steps in the own root, by name."""
        files: dict[str, tuple[str, int]] = {}
        writer_of = step_files_of(DEFAULT).writer_of
        for entry in self._storage.root.entries(lambda name: step_in_name(name) is not None):
            folder = str(self._storage.root.location_of(entry))
            for name, size in file_sizes(folder).items():
                if writer_of(name) is not None:
                    files[name] = f"{folder}/{name}", size
        return files

    def _placement(self) -> ReplicaPlacement:
        """Return who holds the replicas of whom; what is amiss is a problem, once."""
        domain_of, peers = self._options.failure_domain, self._storage.peers
        domains: list[Hashable] = [
            peer.host if domain_of is None else domain_of(process)
            for process, peer in enumerate(peers)
        ]
        placement = place_replicas(domains, self._options.replicas)
        text = _placement_problem(placement, self._options.replicas)
        if text != self._placement_text and self._storage.index == 0:
            self._placement_text = text
            if text:
                error = StorageError(errno.EINVAL, text, str(self._storage.location))
                self._fail(None, "replicas are worth less than was asked for", error)
        return placement

    def _is_held(self, number: int) -> bool:
        """Return True if a step still counts: it was not deleted while it was replicated."""
        return step_name(number) in self._storage.held

    def _fail(self, number: int | None, what: str, error: Exception) -> None:
        self._problems.add(ManagerProblem(number, what, error))


def _bytes_of_others(sizes: Mapping[str, int], process: int, fetched: Collection[str]) -> int:
    """Return the bytes of the data files in a root that other processes have written.

    If this process wrote none in some save, its number may have been another one then: the files of
    the number with the most bytes are taken for its own.

    Args:
        sizes: the size of each file in the root.
        process: the number of this process.
        fetched: the names of files that this process has fetched since it began.
    """
    bytes_of: dict[str, dict[int, int]] = {}  # by save and process, without fetched files
    for name, size in sizes.items():
        writer = step_files_of(DEFAULT).writer_of(name)
        if writer is not None and name not in fetched:
            by_process = bytes_of.setdefault(writer.save, {})
            by_process[writer.process] = by_process.get(writer.process, 0) + size
    written = [each.get(process, max(each.values())) for each in bytes_of.values()]
    return sum(sizes.values()) - sum(written)


def _is_undamaged(path: str, name: str, file: Source) -> bool:
    """Return True if a file of the own root has the bytes that the index of a step implies."""
    folder = storage_of(DEFAULT).store_at(LocalPath(path.rpartition("/")[0]))
    return not missing_files(folder, {name: file}, by_size=False)


def _placement_problem(placement: ReplicaPlacement, replicas: int) -> str:
    """Return what is amiss with a placement; "" if nothing is."""
    texts = []
    if placement.replicas < replicas:
        others = counted(placement.replicas, "other process", "other processes")
        texts.append(f"replicas={replicas}, and there are {others}")
    if placement.shared_domains:
        texts.append(
            f"the replicas of {process_names(placement.shared_domains)} are in a failure domain "
            "that holds another copy: there are too few domains; start processes on more hosts, or "
            "pass failure_domain="
        )
    return "; ".join(texts)
