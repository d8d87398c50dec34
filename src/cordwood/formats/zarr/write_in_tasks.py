"""A save into a directory of zarr arrays whose files workers write, into one staging directory."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cordwood.errors import ProcessError
from cordwood.formats.zarr.existing_index import refuse_to_add
from cordwood.formats.zarr.write import ZarrSave, commit_stage
from cordwood.io.chunk_codecs import chunk_encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import ChunkFile
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.directories import remove_tree
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile

FILES_LAST = False  # the staging directory ends with the process that holds its lock

# The folder in the staging directory in which each task has one: another worker may run it too.
_UNFINISHED = ".unfinished"

_VISIBLE_SECONDS = 60.0  # for a network file system to show a new directory to other machines


class DividedArrays(NamedTuple):
    """A save whose files workers write into its staging directory, which `token` names."""

    save: ZarrSave
    stage: StagingDirectory
    token: str

    def missing(self, reports: Sequence[Any]) -> Sequence[int]:
        del reports  # nobody removes files from a staging directory that is locked
        return []

    def commit(self, reports: Sequence[Any]) -> None:
        remove_tree(f"{self.stage.path}/{_UNFINISHED}")
        files = [WrittenFile(size, bytes.fromhex(digests)) for size, digests in reports]
        commit_stage(self.stage, self.save.item, files)


def unit_sizes(save: ZarrSave) -> Sequence[int]:
    """Return the bytes of each file, before compression."""
    return [
        math.prod(file.shape) * file.itemsize if isinstance(file, ChunkFile) else len(file.data)
        for file in save.item.files
    ]


@contextmanager
def begin(save: ZarrSave, save_id: str) -> Iterator[DividedArrays]:
    """Begin a save: make its staging directory."""
    del save_id
    stage = _stage_of(save)
    refuse_to_add(stage.asked)
    with stage.abandon_on_error():
        yield DividedArrays(save, stage, stage.create_probe())


def write_units(
    save: ZarrSave, token: str, leaves: Leaves, numbers: Sequence[int]
) -> Sequence[Any]:
    """Write files into the staging directory; see `TaskWriter`."""
    stage = _stage_of(save)
    if not stage.sees_probe(token, timeout_seconds=_VISIBLE_SECONDS):
        raise ProcessError(
            f"{save.path}: a worker does not see {token}, which the call has made beside it: all "
            "workers must see the destination under this path, while the call runs"
        )
    files = [save.item.files[number] for number in numbers]
    folder = f"{_UNFINISHED}/{secrets.token_hex(8)}"
    unfinished = [file._replace(path=f"{folder}/{n}") for n, file in enumerate(files)]
    written = stage.write(unfinished, leaves)
    for file, whole in zip(unfinished, files, strict=True):
        stage.put_file(file.path, whole.path)
    stage.sync_directories()
    return [[file.size_bytes, file.digests.hex()] for file in written]


def _stage_of(save: ZarrSave) -> StagingDirectory:
    encode = None if save.item.compression is None else chunk_encoder(save.item.compression)
    return StagingDirectory(
        save.path, encode=encode, timeout_seconds=TIMEOUT_SECONDS, page_cache=save.page_cache
    )
