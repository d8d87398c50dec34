"""WeightPublisher: write versions of weights, most of them as small deltas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, SupportsIndex

from cordwood.deltas.stored_versions import ListedVersions
from cordwood.errors import StepError
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.plan_save import plan_save, write_save
from cordwood.formats.step_names import step_number
from cordwood.formats.table import DEFAULT
from cordwood.formats.version_record import BESIDE, KEY, encode_version
from cordwood.index import size_in_memory
from cordwood.io.leaves_to_write import Leaves
from cordwood.message_text import listed, size_text
from cordwood.processes.key_value_store import current_processes
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.publishing.host_version import HostVersion
from cordwood.publishing.publish_version import (
    PublishedVersion,
    TilesOfProcess,
    TilesOfVersion,
    delta_tree,
    encode_own_tiles,
    join_tiles,
    record_of,
    tiles_of_process,
    whole_tree,
)
from cordwood.publishing.publishing_place import PublishingPlace
from cordwood.saving.background_saves import PendingSave, save_in_background
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.saving.save_rendezvous import announce_errors, rendezvous_for
from cordwood.storage.locations import LocalPath, Location, parse_location
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.thread_pool import together
from cordwood.tree.flatten import FlatTree, describe_tree


class WeightPublisher:
    """A series of versions of weights at one location, for other programs to follow.

    Each version is a checkpoint `location/<version>`. Most are deltas: they hold what has changed
    since the version before, about a byte for each changed element. The first one, and every
    `full_every`th, holds the tree, which `cordwood.load` reads like any other, and a delta beside
    it. `WeightFollower` reads whichever is shorter.

    The values of the version that was published last stay in the host memory of the process: the
    next delta is made from them.

    With several processes, all of them make the same calls, and each writes its part.

    Args:
        location: a directory or URL, which need not exist yet. It holds versions of one tree only.
        full_every: the number of versions from one with the tree to the next, at least 1 (all).
            A reader that begins loads the last of these, and the deltas since.
        keep: how many of the newest versions stay readable, at least 1. Older ones are removed,
            once no newer version needs them.
        timeout_seconds: how long to wait for other processes that are late but alive.

    Raises ValueError for other numbers, and UnsupportedFormatError for a URL of an unknown store.

    >>> import cordwood, numpy as np
    >>> publisher = WeightPublisher("weights")
    >>> publisher.publish(1, {"w": np.zeros(3, np.float32)}).wait()
    >>> publisher.publish(2, {"w": np.ones(3, np.float32)}).wait()
    >>> cordwood.WeightFollower("weights").update()["w"]
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        full_every: int = 50,
        keep: int = 10,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        for name, value in (("full_every", full_every), ("keep", keep)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: expected an int of at least 1, found {value!r:.80}")
        self._place = PublishingPlace(parse_location(location), timeout_seconds)
        self._full_every = full_every
        self._keep = keep
        self._timeout_seconds = timeout_seconds
        self._last: PublishedVersion | None = None  # None: the next version is whole
        self._newest: int | None = None  # the number that was passed last
        self._pending: PendingSave | None = None

    def __repr__(self) -> str:
        return f"WeightPublisher({self.location!r})"

    @property
    def location(self) -> str:
        """The directory or URL that holds the versions."""
        return str(self._place.location)

    def publish(self, version: SupportsIndex, tree: Any) -> PendingSave:
        """Publish the tree as it is now, in the background; the caller may change or donate it.

        Arrays on accelerators are copied to host memory before this returns. jax arrays on CPU are
        not copied: a view of each keeps its memory in use until the next version is published. If
        the version before is still being written, this waits for it first.

        A version that failed is left out: the next one is made from the last that was committed.

        Args:
            version: its number, larger than those of all versions at the location.
            tree: the tree.

        Returns:
            A handle, as of `save_async`: `wait` returns once the version is committed.

        Raises:
            StepError: a version of this number, or a later one, was published. `wait` raises it
                of versions that others have put into a bucket since the first call.
            UnsupportedLeafError: a leaf cannot be stored; names its key path.
            PendingSaveError: an earlier publication or `save_async` of this process failed, and
                its error was not read yet; nothing was begun. The next call begins.
        """
        number = step_number(version)
        if self._newest is not None and number <= self._newest:
            raise StepError(
                f"{self.location}: version {self._newest} was published; expected a larger number, "
                f"found {number}"
            )
        if self._pending is not None:
            self._pending._wait_quietly()
        pending = run_in_worker(lambda: self._publish(number, tree))
        self._newest, self._pending = number, pending
        pending._let_begin()
        return pending

    def _publish(self, number: int, tree: Any) -> PendingSave:
        location = self._place.location_of(number)
        with (
            after_interrupted_saves(str(location)),
            rendezvous_for(
                location,
                DEFAULT,
                SaveOptions(),
                self._timeout_seconds,
                how=" as a published version",
                background=True,
            ) as rendezvous,
        ):
            # A listing of a directory costs next to nothing; that of a store, a round trip.
            is_to_look = self._newest is None or isinstance(location, LocalPath)
            if rendezvous.index == 0 and is_to_look:
                self._place.refuse_old(number)
            described = describe_tree(
                tree, process=rendezvous.index, process_count=rendezvous.count
            )
            host = HostVersion(described, rendezvous.index)
            work = _Publication(self, number, location, host, rendezvous)
            total_bytes = sum(map(size_in_memory, host.specs))
            return save_in_background(str(location), work.run, total_bytes=total_bytes)


class _Publication:
    """The work in the background of one call of `publish`."""

    def __init__(
        self,
        publisher: WeightPublisher,
        number: int,
        location: Location,
        host: HostVersion,
        rendezvous: Rendezvous,
    ) -> None:
        self._publisher = publisher
        self._number = number
        self._location = location
        self._host = host
        self._rendezvous = rendezvous
        self._before: ListedVersions | None = None  # on process 0: what is there before

    def run(self, pending: PendingSave) -> None:
        """Encode, write and commit the version; then remove versions that nobody needs."""
        publisher, host, rendezvous = self._publisher, self._host, self._rendezvous
        last = publisher._last
        chain = [] if last is None else last.chain
        if last is not None and not host.is_alike(last.host):
            last = None
        with announce_errors(rendezvous):
            if rendezvous.index == 0:
                begin = partial(publisher._place.begin, self._number, chain)
                self._before, own = together(begin, partial(encode_own_tiles, host, last))
            else:
                own = encode_own_tiles(host, last)
        with rendezvous:
            tiles = TilesOfVersion(*rendezvous.exchange(tiles_of_process(own, last), self._decide))
        record = record_of(host, tiles, last)
        delta = None if record.base is None else delta_tree(host, own, tiles)
        tree = whole_tree(host) if record.is_whole else delta
        items = {BESIDE: delta} if record.is_whole and delta is not None else None
        self._write(tree, SaveOptions(None, {KEY: encode_version(record)}, items=items))
        chain = [self._number] if record.is_whole else [*chain, self._number]
        publisher._last = PublishedVersion(self._number, record.digest, host, chain)
        pending._advance(sum(map(size_in_memory, host.specs)))
        kinds = ["the tree"] if record.is_whole else []
        if delta is not None:
            kinds.append(f"a delta of {size_text(sum(tiles.sizes))}")
        log.info("%s: published version %d: %s", publisher.location, self._number, listed(kinds))
        if self._before is not None:
            publisher._place.end(
                self._number, self._before, publisher._keep, is_whole=record.is_whole
            )

    def _decide(self, every: Sequence[TilesOfProcess]) -> TilesOfVersion:
        """Join the tiles of all processes, on process 0."""
        publisher = self._publisher
        last = publisher._last
        assert self._before is not None
        # A version that newer ones need may have been removed: readers then need the tree.
        is_due = (
            last is None
            or len(last.chain) >= publisher._full_every
            or not self._before.stamps.keys() >= {*last.chain}
        )
        return join_tiles(self._host, every, is_due=is_due)

    def _write(self, tree: FlatTree | None, options: SaveOptions) -> None:
        rendezvous = Rendezvous(
            current_processes(),
            f"save {self._location}",
            timeout_seconds=self._publisher._timeout_seconds,
            background=True,
        )
        with announce_errors(rendezvous):
            options = options._replace(page_cache=True)
            plan = plan_save(DEFAULT, self._location, tree, options, rendezvous)
            write_save(DEFAULT, plan.save, Leaves(plan.leaves), rendezvous)
