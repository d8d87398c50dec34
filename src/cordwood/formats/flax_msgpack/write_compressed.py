"""Save a tree as a file of Flax's msgpack under gzip or zstd."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.errors import FormatError
from cordwood.formats.flax_msgpack.buffers_of_plan import buffers_of_plan
from cordwood.formats.flax_msgpack.compress import compress
from cordwood.formats.flax_msgpack.compressed_format import Compression, compression_of
from cordwood.formats.flax_msgpack.decompress import require_magic
from cordwood.formats.flax_msgpack.write import plan_tree
from cordwood.formats.foreign_files import foreign_content
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.save_single_file import refuse_foreign_file
from cordwood.formats.table import Format
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.plan.file_plan import FilePlan
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.write_stream import write_stream

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous


class CompressedSave(NamedTuple):
    """A planned save of a tree as a compressed file."""

    path: LocalPath
    plan: FilePlan
    compression: Compression


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the file of a tree."""
    del options, rendezvous
    plan, arrays = plan_tree(tree)
    return SavePlan(arrays, CompressedSave(require_local(location), plan, compression_of(format)))


def write(save: CompressedSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the file."""
    del rendezvous
    buffers = buffers_of_plan(save.plan, leaves)
    write_stream(save.path, compress(buffers, save.compression, size_bytes=save.plan.size_bytes))


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError for a file of another kind, and for a compressed file of others."""
    require = partial(_require_compressed, compression_of(format))
    refuse_foreign_file(require_local(location), require, name=format.name)


def _require_compressed(compression: Compression, file: ReadableFile) -> None:
    require_magic(file, kind=compression)
    content = foreign_content(file)
    if content is not None:
        raise FormatError(f"it contains {content}")
