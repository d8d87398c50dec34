"""The protocols of formats: what modules of a format provide, and the values that they exchange.

`cordwood.formats.table` lists the formats and these modules. docs/design/0008-formats.md has the
reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.storage.locations import LocalPath, Location

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cordwood.formats.step_record import Record
    from cordwood.formats.stored_item import ItemKind, StoredItem
    from cordwood.index import Box, Digests, Index, Leaf, LeafRuns, Source
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.io.open_files import ReadableFile
    from cordwood.keypath import KeyPath
    from cordwood.plan.load_plan import LoadPlan
    from cordwood.processes.rendezvous import Rendezvous
    from cordwood.storage.removal.list_tree import Listing
    from cordwood.storage.storage_protocol import (
        Garbage,
        IndexChange,
        NamingRules,
        Sidecar,
        Storage,
    )


class OpenOptions(NamedTuple):
    """Options of `Reader.open_item`; a format ignores those that do not concern it.

    Attributes:
        max_bytes: how far a compressed file may grow; None: see `decompress_into`.
        read_once: each leaf is read at most once, so that memory can be given back.
        scratch: a directory on whose disk a compressed file is decompressed; None: in memory.
        for_verify: `verify` reports every problem: do not warn, and report a data file that is
            missing or damaged when it is read, and not now.
        read_ahead_bytes: how many bytes of each file to read by one request, before any other.
    """

    max_bytes: int | None = None
    read_once: bool = False
    scratch: LocalPath | None = None
    for_verify: bool = False
    read_ahead_bytes: int = 0


# Called with leaves by their positions, each with the boxes that are needed (None: all of it).
# Returns the same leaves with their pieces.
Locate: TypeAlias = "Callable[[Mapping[int, Sequence[Box] | None]], Mapping[int, Leaf]]"


@dataclass(frozen=True, slots=True)
class Opened:
    """One item of a checkpoint, open: its index and its sources.

    Attributes:
        format: the name of the format.
        index: the index.
        files: the sources of the index, open.
        fetch_digests: gives the digests of a source that is sealed.
        locate: gives pieces of leaves, where the index leaves them out because they are many.
        is_current: returns False once another save has replaced the checkpoint.
        index_bytes: the size of the index file, if opening checked it against a digest. The items
            of a directory share it.
        checked_bytes: bytes of other files that opening checked against digests.
        stored_bytes: the size of the files, where the sources are not them; None: the sources are.
        unstored: leaves with chunks that are not stored and are read as a fill value: how many.
        prepare: called with each plan of a read before it is executed.
        always_verify: True if the digests are checked though a caller asks for no check: other
            processes send the bytes.
    """

    format: str
    index: Index
    files: Sequence[ReadableFile]
    fetch_digests: Callable[[int], Digests] | None = None
    locate: Locate | None = None
    is_current: Callable[[], bool] = lambda: True
    index_bytes: int = 0
    checked_bytes: int = 0
    stored_bytes: int | None = None
    unstored: Mapping[KeyPath, int] = field(default_factory=dict)
    prepare: Callable[[LoadPlan], None] | None = None
    always_verify: bool = False

    def close(self) -> None:
        """Close the files. Leaves that were mapped stay valid."""
        for file in self.files:
            file.close()


@dataclass(eq=False)
class Linking:
    """The link of one save to an older checkpoint, whose files it keeps by hard links.

    Attributes:
        base: the name of the checkpoint, a directory beside the one that is saved, as process 0
            knows it; "" for none.
        linked_bytes: of arrays, by this process, once all is written.
    """

    base: str
    linked_bytes: int = 0


class SaveOptions(NamedTuple):
    """Options of a save. Each format lists those that it takes in `save_options`.

    Attributes:
        prefix: the name of the tree in a directory of several; None: it has none.
        metadata: strings that are stored beside the tree.
        compression: of the chunks; None: they are raw.
        max_shard_bytes: the bytes of arrays in one file; None: the format decides.
        linking: what is needed to link files of an older checkpoint; None: all is written.
        items: more trees by prefix, which are committed with this one. Trees of other prefixes are
            then dropped. None: this tree alone is saved, and those of other prefixes stay.
        files: files that are written beside the tree, by their names.
        page_cache: True if the files may stay in the page cache (`io/page_cache.py`).
        replaces: all that is at the destination, of another tool, as the caller has checked it: it
            is removed once this save is committed. On one process; None: nothing is replaced.
    """

    prefix: str | None = None
    metadata: Mapping[str, str] = {}
    compression: str | None = None
    max_shard_bytes: int | None = None
    linking: Linking | None = None
    items: Mapping[str, Any] | None = None
    files: Mapping[str, bytes] = {}
    page_cache: bool = False
    replaces: Listing | None = None


class SavePlan(NamedTuple):
    """A planned save, which no longer depends on the caller's containers.

    Attributes:
        leaves: the leaves of the tree.
        save: a value of the writer that planned it, for its `write`; it holds no leaves.
        sizes: of each leaf, the bytes that this process writes; None: all of each.
    """

    leaves: Sequence[Any]
    save: object
    sizes: Sequence[int] | None = None


class Detector(Protocol):
    """The recognition of a format."""

    def matches(self, format: Format, place: Place, /) -> Match:
        """Return how well a file or directory fits this format. Reads little."""
        ...


class Reader(Protocol):
    """The reading of a format."""

    def open_item(
        self, format: Format, location: Location, item: str | None, options: OpenOptions, /
    ) -> Opened:
        """Open an item.

        Args:
            format: the row of the format, of which a module may read several.
            location: a local path, or the URL of a directory.
            item: the item's name. None: the item without a name, or the only one.
            options: see `OpenOptions`.

        Raises what `cordwood.open` documents.
        """
        ...


class Writer(Protocol):
    """The writing of a format."""

    def plan_save(
        self,
        format: Format,
        location: Location,
        tree: Any,
        options: SaveOptions,
        rendezvous: Rendezvous,
        /,
    ) -> SavePlan:
        """Plan the save of a tree. Writes nothing.

        Args:
            format: the row of the format.
            location: the destination.
            tree: a pytree, or a `FlatTree` whose leaves are elements that are read later.
            options: those of `save_options`; the others have their defaults.
            rendezvous: of the processes that save together, not entered yet.

        Raises what `cordwood.save` documents.
        """
        ...

    def write(self, save: Any, leaves: Leaves, rendezvous: Rendezvous, /) -> None:
        """Write and commit a planned save.

        Args:
            save: `SavePlan.save` of a plan of this writer.
            leaves: the leaves of the plan, or snapshots of them.
            rendezvous: that of the plan, not entered yet.
        """
        ...

    def refuse_foreign(self, format: Format, location: Location, /) -> None:
        """Raise NotACheckpointError for what a save would destroy and could not have written."""
        ...


class DividedSave(Protocol):
    """A planned save whose files workers write, in any order; this process commits them."""

    @property
    def token(self) -> str:
        """The text that workers need beside the plan, for `TaskWriter.write_units`."""
        ...

    def missing(self, reports: Sequence[Any], /) -> Sequence[int]:
        """Return the positions of units whose files are not there any more."""
        ...

    def commit(self, reports: Sequence[Any], /) -> None:
        """Commit the save, given the reports of all units."""
        ...


class TaskWriter(Protocol):
    """The writing of planned saves by several workers.

    A save has units, numbered from 0, each of which is written by itself: whole files.

    Attributes:
        FILES_LAST: True if the files stay when the process that began has ended, so that others may
            go on, and commit.
    """

    FILES_LAST: bool

    def unit_sizes(self, save: Any, /) -> Sequence[int]:
        """Return the bytes of each unit."""
        ...

    def begin(self, save: Any, save_id: str, /) -> AbstractContextManager[DividedSave]:
        """Begin a save; after an exception in the block remove its files, unless they last.

        Args:
            save: `SavePlan.save` of a plan of this process alone.
            save_id: 16 hexadecimal digits, of this save alone, and of all calls that write it.
        """
        ...

    def write_units(
        self, save: Any, token: str, leaves: Leaves, numbers: Sequence[int], /
    ) -> Sequence[Any]:
        """Write units, durably, as a worker; return a report of each, of JSON values.

        Units that were written before are replaced.

        Args:
            save: `SavePlan.save` of the same plan, made by this process.
            token: that of the `DividedSave`.
            leaves: the leaves of the plan.
            numbers: consecutive units.
        """
        ...


class LossFinder(Protocol):
    """The things in an index that a format cannot store."""

    def losses(self, format: Format, index: Index, metadata: Mapping[str, str], /) -> list[str]:
        """Return what the format cannot store of an index, for people; [] for nothing.

        Raises UnsupportedLeafError for a leaf that it cannot store in any form.
        """
        ...


class ItemLister(Protocol):
    """The items of directories that can hold several trees."""

    def item_names(self, location: Location, /) -> Sequence[str]:
        """Return the names of the items, sorted; "" for the one without a name."""
        ...


class FilesBeside(NamedTuple):
    """The files beside the weights in a directory.

    Attributes:
        files: the contents of those that belong to the model, by name.
        left_out: the names of the others; those of folders end in a slash.
    """

    files: Mapping[str, bytes] = {}
    left_out: Sequence[str] = ()


class CompanionReader(Protocol):
    """The files beside the weights in directories, such as the one of a tokenizer."""

    def files_beside_weights(self, location: Location, /) -> FilesBeside:
        """Return the files beside the weights in a local directory."""
        ...


class Collector(Protocol):
    """The files that a killed save can leave in a directory.

    Those of the other formats are left beside the checkpoint, where `gc` looks.
    """

    def extra_problems(self, location: Location, /) -> Iterable[str]:
        """Return problems that the items do not show, such as files that no item refers to."""
        ...

    def stale_files(self, location: Location, /) -> Sequence[str]:
        """Return the files beside the index that an earlier save has written, and not this one."""
        ...

    def collect(self, location: Location, /, *, dry_run: bool) -> Garbage:
        """Remove the files of killed saves in a directory, and write stale ones again."""
        ...


class DirectoryStorage(Protocol):
    """The storage of directories of data files and one index, of which runs are made.

    Attributes:
        RULES: the rules for the names in a directory.
    """

    RULES: NamingRules

    def store_at(self, location: Location, /, *, to_save: bool = False) -> Storage:
        """Return the directory at a path or URL, which need not exist yet.

        Raises UnsupportedFormatError with `to_save` for a URL that can only be read.
        """
        ...

    def require_index(self, store: Storage, /) -> bytes:
        """Return the bytes of an index that must be there; raises as `Reader.open_item` does."""
        ...


class DataFiles(NamedTuple):
    """The data files of a checkpoint, and the numbers that a verification reports.

    Attributes:
        index_bytes: the index, which was checked.
        leaves: the number of leaves of all items.
        sources: the files; those of several items one after another.
    """

    index_bytes: bytes
    leaves: int
    sources: Sequence[Source]


class DataFileLister(Protocol):
    """The data files of directories, each of which is checked by itself."""

    def data_files(self, location: Location, /) -> DataFiles:
        """Return the data files of a directory; opens none. Raises as `Reader.open_item` does."""
        ...

    def open_data_files(
        self, location: Location, sources: Sequence[Source], /
    ) -> tuple[Sequence[ReadableFile], Callable[[int], Digests]]:
        """Return data files, open, and what reads the digests of each from its header.

        A file that is missing or damaged raises its error when it is read.
        """
        ...


class StepIndex(NamedTuple):
    """The facts in the index of a step that concern the step as a whole.

    Attributes:
        record_text: the record of the manager that saved it, encoded; None: no manager did.
        data_bytes: the size of all data files that it names; None if that is unknown.
        is_version: True if a WeightPublisher saved it.
        is_unshared: True if each process has saved it into a root of its own.
    """

    record_text: str | None
    data_bytes: int | None
    is_version: bool = False
    is_unshared: bool = False


class StepRecords(Protocol):
    """The records that managers keep in the indexes of steps; `name` is the step, for errors."""

    def read_step_index(self, index: bytes, /) -> StepIndex:
        """Return the facts in an index about its step; errors do not name it."""
        ...

    def read_record(self, index: bytes, /, *, name: str) -> Record | None:
        """Return the record in an index; None if no manager saved the step."""
        ...

    def change_of_metrics(
        self, index: bytes, metrics: Mapping[str, float], /, *, name: str, overwrite: bool
    ) -> IndexChange:
        """Return the change of an index that adds metrics to the record of its step.

        Args:
            index: the index.
            metrics: the metrics by name.
            name: the path or URL of the step.
            overwrite: True to replace values that are there.

        Raises StepError if no manager saved the step, or if a metric has another value already.
        """
        ...

    def change_for_orbax(self, index: bytes, item: str | None, /, *, name: str) -> IndexChange:
        """Return the change of an index by which Orbax reads its checkpoint too.

        Args:
            index: the index.
            item: the name of the tree for Orbax; None: that of the index for Orbax that is there,
                or the usual one.
            name: the path of the checkpoint.

        Raises:
            UnsupportedLeafError: Orbax could not read a leaf; names it.
            ValueError: an item has a name that cannot be a directory.
            PrefixError, UnsupportedFormatError: there is no tree without a prefix, or its files
                are in another directory.
        """
        ...


class StepFiles(NamedTuple):
    """The data files of a step.

    Attributes:
        save: identifies the save that made the step; the same after metrics were added.
        saved_at: the time of the save, in seconds since 1970; 0 if no manager saved it.
        sizes: the size of each file by name, in the order of the names.
    """

    save: str
    saved_at: float
    sizes: Mapping[str, int]


class FileWriter(NamedTuple):
    """The process that wrote a data file, and the save in which it did."""

    save: str
    process: int


class StepFileLister(Protocol):
    """The data files that the index of a step names, for roots that processes do not share."""

    def read_step_files(self, index: bytes, /) -> StepFiles:
        """Return the files; errors do not name the step."""
        ...

    def writer_of(self, name: str, /) -> FileWriter | None:
        """Return the writer of a data file, by its name; None for another name."""
        ...

    def missing_files_text(self, index: bytes, names: Collection[str], /) -> str:
        """Return a sentence about the files of a step that are in other roots; "" if none is.

        Args:
            index: the index of the step.
            names: the files in its directory.
        """
        ...


class StepContent(NamedTuple):
    """A step as it is copied.

    Attributes:
        index_bytes: the index.
        sidecars: the files beside the index, by name; None: there is to be none.
        files: the data files by their new names.
        optional_sidecars: files and links that only some indexes have, by path, as `sidecars`.
        left_out: a sentence about what is not copied; "": all is.
    """

    index_bytes: bytes
    sidecars: Mapping[str, bytes | None]
    files: Mapping[str, Source]
    optional_sidecars: Mapping[str, Sidecar | None]
    left_out: str

    def change(self) -> IndexChange:
        """Return the change that makes it the index of a place where there is none."""
        from cordwood.storage.storage_protocol import IndexChange

        sizes = {name: file.size_bytes for name, file in self.files.items()}
        kept = frozenset(self.files)
        optional = self.optional_sidecars
        return IndexChange(self.index_bytes, sizes, self.sidecars, kept, frozenset(), optional)


class StepCopier(Protocol):
    """The copy of a step, data file by data file, each of which is checked."""

    def content_of(
        self, index: bytes, location: Location, /, *, in_pool: bool, has_links: bool
    ) -> StepContent:
        """Return the content of a step whose files get other names.

        Args:
            index: the index.
            location: its directory.
            in_pool: True if files in the pool of a run stay there, and others go there if they are
                not in an object store already.
            has_links: True if there can be links where the step is copied to.
        """
        ...

    def with_metrics_of(
        self, content: StepContent, index: bytes, /, *, name: str
    ) -> StepContent | None:
        """Return a content with the metrics of an index too; None for that of another save.

        None also if a metric has two values.
        """
        ...

    def is_whole(self, file: ReadableFile, source: Source, /) -> bool:
        """Return True if a data file is the one of a source, byte by byte.

        Raises CorruptionError and FormatError for a header of another file.
        """
        ...

    def write_files(
        self, origin: Storage, files: Mapping[str, Source], destination: Location, /
    ) -> None:
        """Copy data files, by their new names; each has its name once it is whole.

        Raises CorruptionError that names a file and a range, and OSError.
        """
        ...


class IndexListing(NamedTuple):
    """The leaves of an item and its strings, from the index alone."""

    leaves: Index | LeafRuns
    metadata: Mapping[str, str]


class IndexLister(Protocol):
    """The leaves of a checkpoint by its index alone, without numpy."""

    def list_index(self, path: LocalPath, item: str | None, /) -> IndexListing | None:
        """Return the leaves of a local checkpoint; None where only opening it tells.

        Raises what `open_item` raises for an index.
        """
        ...


class RunReader(Protocol):
    """The directories in which another tool keeps the steps of a run."""

    def is_at(self, place: Place, /) -> bool:
        """Return whether the tool wrote a directory: a checkpoint, steps or an unfinished save."""
        ...

    def steps_at(self, place: Place, /) -> Sequence[str]:
        """Return the names of the steps in a directory, the newest last; () for none."""
        ...

    def is_unfinished_at(self, place: Place, /) -> bool:
        """Return whether a directory is the beginning of a checkpoint whose save did not end."""
        ...

    def refuse_unfinished(self, path: LocalPath, /) -> None:
        """Raise IncompleteCheckpointError if an unfinished save was to become it."""
        ...

    def is_unfinished_name(self, name: str, /) -> bool:
        """Return whether a directory of that name is a save that did not end."""
        ...


class StepMetrics(NamedTuple):
    """The metrics of a step, and when it was saved."""

    time: float  # in seconds since 1970; 0 if it is not stored
    metrics: Mapping[str, float]


class MetricsReader(Protocol):
    """The metrics that a tool has saved with its steps."""

    def saved_metrics(self, place: Place, /) -> StepMetrics | None:
        """Return the metrics of a step; None if there are none.

        Raises FileNotFoundError and NotADirectoryError if there is no such directory.
        """
        ...


class OtherItemReader(Protocol):
    """The items of directories that are no trees."""

    def other_items(self, location: Location, /) -> Mapping[str, ItemKind]:
        """Return the kinds of the items, by their names."""
        ...

    def read_item(self, location: Location, name: str, kind: ItemKind, /) -> StoredItem:
        """Return what an item of a kind stores. Raises CorruptionError, FormatError, LimitError."""
        ...

    def read_extras(
        self, location: Location, items: Mapping[str, ItemKind], /
    ) -> Mapping[str, Any] | None:
        """Return the small values among the items, by name; None if there are none."""
        ...


class FileLister(Protocol):
    """The files of checkpoints, by which a removal knows what else lies among them."""

    def foreign_files(self, location: Location, names: Sequence[str], /) -> Collection[str]:
        """Return the files in a checkpoint that are no part of it.

        A file that may be its own, but is not known to be, is among them.

        Args:
            location: the checkpoint.
            names: the paths of all its files, relative to it.
        """
        ...


class StepsBeside(Protocol):
    """The steps that lie in a checkpoint beside its tree."""

    def steps_beside(self, place: Place, /) -> Sequence[str]:
        """Return the names of such steps in a directory, oldest first."""
        ...
