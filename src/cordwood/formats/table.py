"""The table of formats, in the order in which a file or directory is compared with them.

A row has what is known without any code of its format: names, suffixes, the index file, and the
modules that do the work. `load_format` imports those when they are used. To add a format, write its
package and add its row to FORMATS.
"""

from __future__ import annotations

from typing import NamedTuple

from cordwood.errors import UnsupportedFormatError


class Format(NamedTuple):
    """A row of the table. Modules are dotted names; "" where the format has no such part.

    Attributes:
        name: the name that `detect` returns and `format=` takes.
        description: a few words for users, such as "a safetensors file".
        suffixes: the suffixes of its files; () for a directory format.
        index_name: the file, or a pattern, that makes a directory a checkpoint; "" for a file
            format.
        reader: the module of its `Reader`.
        detector: of its `Detector`; "": a directory with the index file is a checkpoint.
        items: of its `ItemLister`, if directories can hold several trees.
        other_items: of its `OtherItemReader`, if directories can hold items that are no trees.
        lister: of its `IndexLister`, if the index alone says what the leaves are.
        writer: of its `Writer`, if `save` or `convert` writes it.
        task_writer: of its `TaskWriter`, if several workers can write one checkpoint.
        save_options: the fields of `SaveOptions` that the writer takes; others are refused.
        losses: of its `LossFinder`, if there are things that it cannot store.
        collector: of its `Collector`, if killed saves can leave files in a checkpoint.
        storage: of its `DirectoryStorage`, if runs and copies are made of its directories.
        data_files: of its `DataFileLister`, if each data file is checked by itself.
        records: of its `StepRecords`, if managers save steps in it.
        copier: of its `StepCopier`, if its directories are copied file by file.
        step_files: of its `StepFileLister`, if processes save steps into roots of their own.
        companions: of its `CompanionReader`, if directories have files beside the weights.
        files: of its `FileLister`, if `rm` removes its directories.
        runs: of its `RunReader`, if its tool has directories of steps of its own.
        tool: the name of that tool.
        metrics: of its `MetricsReader`, if that tool saves metrics with its steps.
        steps_beside: of its `StepsBeside`, if a checkpoint can have steps beside its tree.
        reads_stores: True if it is read in object stores too.
    """

    name: str
    description: str
    reader: str
    suffixes: tuple[str, ...] = ()
    index_name: str = ""
    detector: str = ""
    items: str = ""
    other_items: str = ""
    lister: str = ""
    writer: str = ""
    task_writer: str = ""
    save_options: frozenset[str] = frozenset()
    losses: str = ""
    collector: str = ""
    storage: str = ""
    data_files: str = ""
    records: str = ""
    copier: str = ""
    step_files: str = ""
    companions: str = ""
    files: str = ""
    runs: str = ""
    tool: str = ""
    metrics: str = ""
    steps_beside: str = ""
    reads_stores: bool = False

    @property
    def is_directory(self) -> bool:
        """True if its checkpoints are directories."""
        return not self.suffixes

    @property
    def is_writable(self) -> bool:
        """True if `save` or `convert` writes it."""
        return bool(self.writer)


SAFETENSORS = Format(
    name="safetensors",
    description="a safetensors file",
    suffixes=(".safetensors",),
    detector="cordwood.formats.safetensors.format",
    reader="cordwood.formats.safetensors.format",
    lister="cordwood.formats.safetensors.format",
    writer="cordwood.formats.safetensors.write",
    save_options=frozenset({"metadata"}),
)
NPZ = Format(
    name="npz",
    description="numpy arrays in a zip archive",
    suffixes=(".npz",),
    detector="cordwood.formats.numpy_files.npz_format",
    reader="cordwood.formats.numpy_files.npz_format",
)
NPY = Format(
    name="npy",
    description="one numpy array",
    suffixes=(".npy",),
    detector="cordwood.formats.numpy_files.npy_format",
    reader="cordwood.formats.numpy_files.npy_format",
)
EQX = Format(
    name="eqx",
    description="an equinox tree without names",
    suffixes=(".eqx",),
    detector="cordwood.formats.numpy_files.eqx_format",
    reader="cordwood.formats.numpy_files.eqx_format",
)
MSGPACK = Format(
    name="msgpack",
    description="a tree in Flax's msgpack",
    suffixes=(".msgpack",),
    detector="cordwood.formats.flax_msgpack.format",
    reader="cordwood.formats.flax_msgpack.format",
    lister="cordwood.formats.flax_msgpack.format",
    writer="cordwood.formats.flax_msgpack.write",
    losses="cordwood.formats.flax_msgpack.write",
    reads_stores=True,  # a run of Flax has them as its steps
)
MSGPACK_GZ = MSGPACK._replace(
    name="msgpack.gz",
    description="a tree in Flax's msgpack, under gzip",
    suffixes=(".msgpack.gz",),
    detector="cordwood.formats.flax_msgpack.compressed_format",
    reader="cordwood.formats.flax_msgpack.compressed_format",
    lister="",
    writer="cordwood.formats.flax_msgpack.write_compressed",
    reads_stores=False,
)
MSGPACK_ZST = MSGPACK_GZ._replace(
    name="msgpack.zst",
    description="a tree in Flax's msgpack, under zstd",
    suffixes=(".msgpack.zst",),
)
MSGPACK_RECORDS = Format(
    name="msgpack-records",
    description="a stream of msgpack records, as EasyLM writes it",
    suffixes=(".msgpack",),
    detector="cordwood.formats.flax_msgpack.records_format",
    reader="cordwood.formats.flax_msgpack.records_format",
)
PACKS = Format(
    name="packs",
    description="a directory of safetensors files with cordwood's index",
    index_name="cordwood.json",
    reader="cordwood.formats.packs.open",
    items="cordwood.formats.packs.open",
    lister="cordwood.formats.packs.list_index",
    writer="cordwood.formats.packs.write",
    task_writer="cordwood.formats.packs.write_in_tasks",
    save_options=frozenset({"prefix", "metadata", "max_shard_bytes", "linking", "items"}),
    collector="cordwood.formats.packs.leftovers",
    files="cordwood.formats.packs.checkpoint_files",
    storage="cordwood.formats.packs.packs_storage",
    data_files="cordwood.formats.packs.open",
    records="cordwood.formats.packs.step_records",
    copier="cordwood.formats.packs.copied_files",
    step_files="cordwood.formats.packs.unshared.step_files",
    reads_stores=True,
)
ZARR = Format(
    name="zarr",
    description="a directory of zarr arrays with eFormer's index",
    index_name="tensorstore_index.json",
    reader="cordwood.formats.zarr.read_index",
    items="cordwood.formats.zarr.read_index",
    lister="cordwood.formats.zarr.read_index",
    writer="cordwood.formats.zarr.write",
    task_writer="cordwood.formats.zarr.write_in_tasks",
    save_options=frozenset({"prefix", "metadata", "compression"}),
    files="cordwood.formats.zarr.checkpoint_files",
    reads_stores=True,
)
ORBAX = Format(
    name="orbax",
    description="an Orbax checkpoint",
    index_name="_METADATA",
    detector="cordwood.formats.orbax.format",
    reader="cordwood.formats.orbax.read_index",
    items="cordwood.formats.orbax.select_tree",
    other_items="cordwood.formats.orbax.other_items",
    files="cordwood.formats.orbax.checkpoint_files",
    runs="cordwood.formats.orbax.runs",
    metrics="cordwood.formats.orbax.saved_metrics",
    tool="Orbax",
    reads_stores=True,
)
SHARDS = Format(
    name="safetensors-shards",
    description="a directory of safetensors files with the index of Hugging Face",
    index_name="*.safetensors.index.json",
    detector="cordwood.formats.hugging_face.format",
    reader="cordwood.formats.hugging_face.shards",
    companions="cordwood.formats.hugging_face.files_beside_weights",
    files="cordwood.formats.hugging_face.checkpoint_files",
    steps_beside="cordwood.formats.hugging_face.format",
)
SINGLE_FILE = SHARDS._replace(
    description="a directory with a model.safetensors, as the Hugging Face hub has it",
    index_name="model.safetensors",
    detector="cordwood.formats.hugging_face.single_file_format",
)
OCDBT_ARRAYS = Format(
    name="ocdbt",
    description="an OCDBT database of zarr arrays, as Levanter and jax write it",
    index_name="manifest.ocdbt",
    detector="cordwood.formats.ocdbt_arrays.format",
    reader="cordwood.formats.ocdbt_arrays.read_index",
    reads_stores=True,
)
ZARR_TREE = Format(
    name="zarr-tree",
    description="a directory tree of zarr arrays without an index",
    index_name="**/.zarray or **/zarr.json",
    detector="cordwood.formats.zarr.tree_format",
    reader="cordwood.formats.zarr.read_tree",
    files="cordwood.formats.zarr.tree_format",
    reads_stores=True,
)
HUGGING_FACE = Format(
    name="hugging_face",
    description="a directory for the Hugging Face hub",
    index_name="model.safetensors.index.json",
    reader="cordwood.formats.hugging_face.shards",
    writer="cordwood.formats.hugging_face.write",
    companions="cordwood.formats.hugging_face.files_beside_weights",
    save_options=frozenset({"metadata", "max_shard_bytes", "files"}),
    losses="cordwood.formats.hugging_face.write",
)
# In an object store a directory of zarr arrays is one tree, which is written once.
ZARR_IN_STORE = ZARR._replace(
    writer="cordwood.formats.zarr.write_to_store",
    task_writer="cordwood.formats.zarr.write_to_store",
    save_options=frozenset({"metadata", "compression"}),
)
ORBAX_EXPORT = ORBAX._replace(
    writer="cordwood.formats.orbax.write",
    save_options=frozenset({"metadata"}),
    losses="cordwood.formats.orbax.write",
)

FORMATS: tuple[Format, ...] = (
    SAFETENSORS,
    NPZ,
    NPY,
    EQX,
    MSGPACK,
    MSGPACK_GZ,
    MSGPACK_ZST,
    MSGPACK_RECORDS,
    PACKS,
    ZARR,
    ORBAX,
    SHARDS,
    SINGLE_FILE,
    OCDBT_ARRAYS,
    ZARR_TREE,
)
# Formats that `save` and `convert` write where they are named, and managers do not: they do not
# hold all of a tree. A directory of one is recognised as a format that is only read.
EXPORTS: tuple[Format, ...] = (HUGGING_FACE, ORBAX_EXPORT)
# The format of a new directory, and of one in an object store, where the caller names none.
DEFAULT = PACKS


def file_formats(*, writable: bool = False) -> list[Format]:
    """Return the formats of one file; with `writable`, those that are written."""
    return [
        format
        for format in FORMATS
        if not format.is_directory and (format.is_writable or not writable)
    ]


def directory_formats() -> list[Format]:
    """Return the formats of directories."""
    return [format for format in FORMATS if format.is_directory]


def run_formats() -> list[Format]:
    """Return the formats of tools that have directories of steps of their own."""
    return [format for format in FORMATS if format.runs]


def by_name(name: str) -> Format | None:
    """Return the format of a name; None where there is none."""
    return next((format for format in (*FORMATS, *EXPORTS) if format.name == name), None)


def require_name(name: str) -> Format:
    """Return the format of a name. Raises UnsupportedFormatError with the names that there are."""
    format = by_name(name)
    if format is None:
        raise unknown_name(name, [format.name for format in FORMATS])
    return format


def unknown_name(name: str, names: list[str]) -> UnsupportedFormatError:
    """Return the error for a name that is none of `names`."""
    expected = ", ".join(map(repr, dict.fromkeys(names)))
    return UnsupportedFormatError(f"format {name!r} is unknown; expected one of {expected}")
