"""The table of formats: its modules are there, and do what the protocols say."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import pytest

from cordwood.formats import table
from cordwood.formats.flax_msgpack import compressed_format, records_format, write_compressed
from cordwood.formats.flax_msgpack import format as msgpack_format
from cordwood.formats.flax_msgpack import write as write_msgpack
from cordwood.formats.format_protocol import (
    Collector,
    CompanionReader,
    Detector,
    DirectoryStorage,
    FileLister,
    IndexLister,
    ItemLister,
    LossFinder,
    MetricsReader,
    OtherItemReader,
    Reader,
    RunReader,
    StepCopier,
    StepFileLister,
    StepRecords,
    StepsBeside,
    TaskWriter,
    Writer,
)
from cordwood.formats.hugging_face import checkpoint_files as hub_files
from cordwood.formats.hugging_face import files_beside_weights, shards, single_file_format
from cordwood.formats.hugging_face import format as shards_format
from cordwood.formats.hugging_face import write as write_for_hub
from cordwood.formats.numpy_files import eqx_format, npy_format, npz_format
from cordwood.formats.ocdbt_arrays import format as ocdbt_format
from cordwood.formats.ocdbt_arrays import read_index as read_ocdbt
from cordwood.formats.orbax import checkpoint_files as orbax_files
from cordwood.formats.orbax import format as orbax_format
from cordwood.formats.orbax import other_items, runs, saved_metrics, select_tree
from cordwood.formats.orbax import read_index as read_orbax
from cordwood.formats.orbax import write as write_for_orbax
from cordwood.formats.packs import checkpoint_files as packs_files
from cordwood.formats.packs import (
    copied_files,
    leftovers,
    list_index,
    packs_storage,
    step_records,
)
from cordwood.formats.packs import open as open_packs
from cordwood.formats.packs import write as write_packs
from cordwood.formats.packs import write_in_tasks as packs_in_tasks
from cordwood.formats.packs.unshared import step_files
from cordwood.formats.safetensors import format as safetensors_format
from cordwood.formats.safetensors import write as write_safetensors
from cordwood.formats.table import EXPORTS, FORMATS, Format
from cordwood.formats.zarr import checkpoint_files as zarr_files
from cordwood.formats.zarr import read_index as read_zarr
from cordwood.formats.zarr import read_tree, tree_format
from cordwood.formats.zarr import write as write_zarr
from cordwood.formats.zarr import write_in_tasks as zarr_in_tasks
from cordwood.formats.zarr import write_to_store as zarr_to_store
from tests.children import run_python

# The type checker compares each module with its protocol.
DETECTORS: Sequence[Detector] = (
    *(safetensors_format, npz_format, npy_format, eqx_format, msgpack_format, compressed_format),
    *(records_format, orbax_format, shards_format, single_file_format, ocdbt_format, tree_format),
)
READERS: Sequence[Reader] = (
    *(safetensors_format, npz_format, npy_format, eqx_format, msgpack_format, compressed_format),
    *(records_format, open_packs, read_zarr, read_orbax, shards, read_ocdbt, read_tree),
)
WRITERS: Sequence[Writer] = (
    *(write_safetensors, write_msgpack, write_compressed, write_packs, write_zarr, write_for_hub),
    *(write_for_orbax, zarr_to_store),
)
TASK_WRITERS: Sequence[TaskWriter] = (packs_in_tasks, zarr_in_tasks, zarr_to_store)
LISTERS: Sequence[IndexLister] = (safetensors_format, msgpack_format, list_index, read_zarr)
ITEMS: Sequence[ItemLister] = (open_packs, read_zarr, select_tree)
OTHER_ITEMS: Sequence[OtherItemReader] = (other_items,)
LOSSES: Sequence[LossFinder] = (write_msgpack, write_for_hub, write_for_orbax)
COLLECTORS: Sequence[Collector] = (leftovers,)
STORAGES: Sequence[DirectoryStorage] = (packs_storage,)
RECORDS: Sequence[StepRecords] = (step_records,)
COPIERS: Sequence[StepCopier] = (copied_files,)
STEP_FILES: Sequence[StepFileLister] = (step_files,)
COMPANIONS: Sequence[CompanionReader] = (files_beside_weights,)
FILES: Sequence[FileLister] = (*(orbax_files, packs_files, hub_files, zarr_files, tree_format),)
RUNS: Sequence[RunReader] = (runs,)
METRICS: Sequence[MetricsReader] = (saved_metrics,)
STEPS_BESIDE: Sequence[StepsBeside] = (shards_format,)

MODULES: dict[str, Sequence[object]] = {
    "detector": DETECTORS,
    "reader": READERS,
    "writer": WRITERS,
    "task_writer": TASK_WRITERS,
    "lister": LISTERS,
    "items": ITEMS,
    "other_items": OTHER_ITEMS,
    "losses": LOSSES,
    "collector": COLLECTORS,
    "storage": STORAGES,
    "records": RECORDS,
    "copier": COPIERS,
    "step_files": STEP_FILES,
    "companions": COMPANIONS,
    "files": FILES,
    "runs": RUNS,
    "metrics": METRICS,
    "steps_beside": STEPS_BESIDE,
}
ROWS = [format for format in vars(table).values() if isinstance(format, Format)]


@pytest.mark.parametrize("field", MODULES)
def test_the_modules_of_the_table_are_those_that_the_type_checker_sees(field: str) -> None:
    names = {getattr(format, field) for format in ROWS} - {""}
    assert {import_module(name) for name in names} == set(MODULES[field])


def test_every_row_is_listed() -> None:
    assert set(ROWS) == {*FORMATS, *EXPORTS, table.ZARR_IN_STORE}
    names = [format.name for format in (*FORMATS, *EXPORTS)]
    assert {name for name in names if names.count(name) > 1} == {"safetensors-shards", "orbax"}


def test_a_format_says_how_it_is_recognised() -> None:
    for format in FORMATS:
        assert bool(format.suffixes) != bool(format.index_name), format.name
        assert format.detector or not set("*? ") & set(format.index_name), format.name
        assert bool(format.tool) == bool(format.runs), format.name


def test_the_table_imports_no_format() -> None:
    code = "import cordwood.formats.table, sys; print(*sorted(sys.modules))"
    loaded = [name for name in run_python(code).split() if name.startswith("cordwood.formats.")]
    assert loaded == ["cordwood.formats.table"]
