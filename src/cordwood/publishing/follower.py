"""WeightFollower: hold the newest version of weights that a WeightPublisher writes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, NamedTuple, SupportsIndex, Unpack

from cordwood.deltas.held_version import HeldVersion, NotHeldError
from cordwood.deltas.load_version import load_newest
from cordwood.deltas.stored_versions import StoredVersions
from cordwood.deltas.version_chain import open_chain
from cordwood.errors import CordwoodError, MismatchError, ProcessError, StorageError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_number
from cordwood.formats.table import DEFAULT
from cordwood.loading.load_options import LoadOptions, ReadOptions
from cordwood.loading.load_tree import load_tree
from cordwood.manager.argument_hints import refuse_arguments
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.locations import parse_location
from cordwood.storage.object_stores.object_store_errors import is_temporary
from cordwood.storage.object_stores.request_deadline import request_deadline
from cordwood.storage.open_step_storage import open_step_listing
from cordwood.threads.log import log

_ATTEMPTS = 5  # each finds the versions that are there then
_MAX_PAUSE_SECONDS = 8.0  # after several failures of a server


class _End(IntEnum):
    """The end of an attempt to load a version; of several processes the largest counts."""

    LOADED = 0
    FAILED = 1  # a version may have been removed meanwhile: try again
    REFUSED = 2


class _Attempt(NamedTuple):
    """The end of an attempt, the tree, and the error."""

    end: _End
    tree: Any
    error: Exception | None


class WeightFollower:
    """The newest version of the weights that a `WeightPublisher` writes to a location.

    The first `update` loads a whole version, and the deltas since. Later ones read only the deltas,
    and change what this holds: the tiles (boxes of at most 4 MiB) that the devices of this process
    need, in host memory. Each tile is compared with the digest that the publisher computed, before
    anything is returned. So what `update` returns is always exactly one published version; arrays
    that were returned before never change.

    `like` may have any sharding, whatever that of the publisher; with `select` or `recipe` this is
    about a part of the tree, or another form of it, and no more is read. Several followers need not
    know of one another, nor the publisher of them.

    With several processes, all of them call `update` and `wait_for` together, and get the same
    version.

    Args:
        location: the directory or URL of the publisher, which need not exist yet. Also the URL of
            a directory that `cordwood serve` serves.
        like: as in `cordwood.load`; None: the tree as it was published.
        timeout_seconds: how long to wait for other processes that are late but alive.
        options: those of `cordwood.load` that say what to make of the tree: `select`, `recipe`,
            `cast`, `mesh`, `rules`, `shardings`, `to` and so on; not `mmap`.

    Attributes:
        version: the number of the version that `update` returned last; None before.

    Raises UnsupportedFormatError for a URL of an unknown store, and ValueError for `mmap`.

    >>> import cordwood, numpy as np
    >>> publisher = cordwood.WeightPublisher("weights-2")
    >>> publisher.publish(7, {"w": np.zeros(3, np.float32)}).wait()
    >>> follower = WeightFollower("weights-2", to="numpy")
    >>> follower.wait_for(7, timeout_seconds=60), follower.update()
    (7, {'w': array([0., 0., 0.], dtype=float32)})
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        like: Any = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        **options: Unpack[ReadOptions],
    ) -> None:
        names = sorted({"like", "timeout_seconds", *ReadOptions.__annotations__} - {"mmap"})
        refuse_arguments("WeightFollower", options.keys() - {*names, "mmap"}, names)
        if options.get("mmap"):
            raise ValueError("mmap: a follower has no file to map; leave it out")
        self._options = LoadOptions(**options)
        self._options.require_valid(like)
        self._like = like
        storage = open_step_listing(parse_location(location), storage_of(DEFAULT).RULES)
        self._versions = StoredVersions(storage)
        self._group = ProcessGroup(self.location, timeout_seconds)
        self._held: HeldVersion | None = None
        self._held_stamp = ""  # the stamp with which that version was listed
        self._returned: tuple[int, str] | None = None  # number and stamp of what `update` returned
        self.version: int | None = None

    def __repr__(self) -> str:
        return f"WeightFollower({self.location!r})"

    @property
    def location(self) -> str:
        """The directory or URL that holds the versions."""
        return str(self._versions.location)

    def newest(self) -> int | None:
        """Return the number of the newest published version; None if there is none yet."""
        steps = self._versions.listing().steps
        return steps[-1] if steps else None

    def wait_for(
        self,
        version: SupportsIndex,
        timeout_seconds: float | None = None,
        *,
        poll_seconds: float = 0.5,
    ) -> int:
        """Wait until a version, or a later one, is published; return the newest. Loads nothing.

        Args:
            version: its number.
            timeout_seconds: how long to wait; None: for ever.
            poll_seconds: the time between two looks at the location.

        A server that does not answer, or fails, is asked again, as one that has no version yet.

        Raises:
            TimeoutError: it did not come in time; names the last failure of the server.
            Exception: the location cannot be listed at all, such as PermissionError.
        """
        number = step_number(version)
        deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds

        def look() -> tuple[int | None, str, bool]:
            newest, failure = self._look(deadline)
            is_late = newest is None or newest < number
            return newest, failure, is_late and time.monotonic() >= deadline

        failures = 0  # one after another
        while True:
            newest, failure, has_timed_out = self._group.agree("look for a version of", look)
            if newest is not None and newest >= number:
                return newest
            if has_timed_out:
                text = "there is none" if newest is None else f"the newest is {newest}"
                raise TimeoutError(
                    f"{self.location}: version {number} did not come within {timeout_seconds:g} s; "
                    f"{failure or text}"
                )
            failures = failures + 1 if failure else 0
            pause = max(poll_seconds, min(poll_seconds * 2**failures, _MAX_PAUSE_SECONDS))
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def _look(self, deadline: float) -> tuple[int | None, str]:
        """Return the number of the newest version, and "" or a failure that may be temporary."""
        try:
            with request_deadline(deadline):
                return self.newest(), ""
        except StorageError as e:
            if not is_temporary(e):
                raise
            return None, str(e)

    def update(self, tree: Any = None) -> Any:
        """Return the newest version.

        Where a delta is missing, damaged or of another base, the tree is loaded whole. Until this
        has succeeded, what was returned before remains the newest that this program has.

        Args:
            tree: what the caller has: it is returned if there is no newer version.

        Raises:
            FileNotFoundError: nothing is published yet; `wait_for` waits.
            CorruptionError: the newest version is damaged, and cannot be loaded whole either. The
                next `update` tries again.
            MismatchError: `like` or an option does not fit the tree.
            Exception: other errors of `cordwood.load`.
        """
        for _ in range(_ATTEMPTS):
            steps, stamp = self._group.agree("find the newest version of", self._find_versions)
            newest = steps[-1]
            if tree is not None and (newest, stamp) == self._returned:
                return tree
            attempt = self._try(steps, stamp)
            end = self._agree_on(attempt.end, newest)
            if end is _End.LOADED:
                self.version, self._returned = newest, (newest, stamp)
                return attempt.tree
            if end is _End.REFUSED:
                break
        raise attempt.error or ProcessError(
            f"{self.location}: version {newest} could not be loaded by another process"
        )

    def _try(self, steps: Sequence[int], stamp: str) -> _Attempt:
        """Load the last of these versions on this process."""
        newest = steps[-1]
        try:
            return _Attempt(_End.LOADED, self._load(steps, stamp), None)
        except MismatchError as e:
            return _Attempt(_End.REFUSED, None, e)
        except (CordwoodError, OSError) as e:
            log.info("%s: version %d was not loaded: %s", self.location, newest, e)
            return _Attempt(_End.FAILED, None, e)
        except Exception as e:  # noqa: BLE001  (raised again, once the other processes know)
            return _Attempt(_End.REFUSED, None, e)

    def _agree_on(self, end: _End, newest: int) -> _End:
        """Return the worst end of an attempt among all processes."""
        if self._group.count == 1:
            return end
        with self._group.rendezvous(f"load version {newest} of") as rendezvous:
            return _End(rendezvous.exchange(end.value, max))

    def _load(self, steps: Sequence[int], stamp: str) -> Any:
        """Return a version: from what is held and the deltas since, or else loaded whole."""
        newest = steps[-1]
        if self._held is not None and self._held.step == newest and self._held_stamp != stamp:
            self._held = None  # that version was removed, and another one has its number
        self._held_stamp = stamp
        if self._held is not None and self._held.step != newest:
            try:
                self._change(steps)
            except (CordwoodError, OSError) as e:
                log.info("%s: version %d is loaded whole: %s", self.location, newest, e)
        if self._held is not None and self._held.step == newest:
            try:
                return load_tree(self._held.reader(), self._like, self._options)
            except NotHeldError:  # `like` has become another part of the tree
                pass
        tree, self._held = load_newest(self._versions, steps, self._like, self._options)
        return tree

    def _change(self, steps: Sequence[int]) -> None:
        """Change what is held into a newer version, if deltas lead there."""
        held = self._held
        assert held is not None
        with ExitStack() as stack:
            chain = open_chain(self._versions, steps, held, stack)
            if chain.whole is not None:
                return
            changes = held.read_changes(chain.deltas)
            self._held = None  # until all of it is the new version
            held.change(changes)
        self._held = held

    def _find_versions(self) -> tuple[list[int], str]:
        """Return the numbers of the versions, ascending, and the stamp of the newest."""
        there = self._versions.listing()
        if not there.steps:
            raise FileNotFoundError(
                f"{self.location}: no version is published yet; wait_for(version) waits for one"
            )
        return there.steps, there.stamps[there.steps[-1]]
