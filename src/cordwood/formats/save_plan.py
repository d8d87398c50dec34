"""A save, planned: the leaves that it wants, and how to write them once they are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from cordwood.formats.directory_formats import Layout, module_of
from cordwood.formats.file_formats import Format
from cordwood.io.lazy_array import LazyArray
from cordwood.io.write_file import write_file, write_stream
from cordwood.processes.rendezvous import Rendezvous
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf, whole_array

Fetch: TypeAlias = Callable[[int], Any]


class Linking:
    """What one save needs to link files of an older one.

    Args:
        base: asked on process 0, once the save has begun: the name of the checkpoint, a directory
            beside the one that is saved; "" for none.
        look: gives a leaf that has not been taken up for writing yet, any number of times.

    Attributes:
        linked_bytes: of arrays, by this process, once all is written.
    """

    def __init__(self, base: Callable[[], str], look: Fetch) -> None:
        self.base = base
        self.look = look
        self.linked_bytes = 0


class Job(NamedTuple):
    """A save. Nothing of it depends on the caller's containers any more."""

    leaves: Sequence[Any]
    write: Callable[[Fetch], None]  # asks for each leaf once, when it is its turn
    sizes: Sequence[int] | None = None  # of each leaf: bytes written here; None: all of each


def require_strings(metadata: Any) -> None:
    """Raise TypeError for metadata that are no mapping; what is in it is for its format to say."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of strings, found {metadata!r:.80}")


def plan_job(
    path: str | os.PathLike[str],
    tree: Any,
    row: Format | Layout,
    metadata: Mapping[str, str] | None,
    *,
    prefix: str | None,
    compression: str | None,
    rendezvous: Rendezvous,
    linking: Linking | None = None,
    max_shard_bytes: int | None = None,
    items: Mapping[str, Any] | None = None,
) -> Job:
    """Plan the save of a tree; raises as `cordwood.save` does, before it writes.

    `rendezvous` is of the processes that save together, and is entered when the job is written;
    `linking` and `items`, more trees by prefix, are for directories of packs, and
    `max_shard_bytes` for all of safetensors files.
    """
    metadata = {} if metadata is None else metadata
    require_strings(metadata)
    options: dict[str, Any] = {} if linking is None else {"linking": linking}
    if max_shard_bytes is not None:
        if row.name not in ("packs", "hugging_face"):
            raise ValueError(
                f"{os.fspath(path)}: max_shard_bytes= is for directories of safetensors files"
            )
        if type(max_shard_bytes) is not int or max_shard_bytes < 1:
            raise ValueError(
                f"max_shard_bytes: expected an int of at least 1, found {max_shard_bytes!r:.80}"
            )
        options["max_shard_bytes"] = max_shard_bytes
    if items is not None:
        options["items"] = items
    if compression is not None:
        if row.name != "zarr":
            raise ValueError(f'{os.fspath(path)}: compression= is for layout="zarr"')
        options["compression"] = compression
    if isinstance(row, Layout):
        job: Job = module_of(row).plan_job(
            path, tree, prefix=prefix, metadata=metadata, rendezvous=rendezvous, **options
        )
        return job
    if row.name == "safetensors":
        from cordwood.formats.safetensors.plan_save import plan_save

        flat = flatten(tree)
        specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
        plan = plan_save(flat.structure, specs, metadata=metadata)
        return Job(
            flat.leaves, lambda fetch: write_file(path, plan, lambda i: elements_of(fetch(i)))
        )
    if metadata:
        raise ValueError(f"{os.fspath(path)}: the {row.name} format has no place for metadata")
    from cordwood.msgpack import plan_buffers, plan_state
    from cordwood.state_dict.state_dicts import to_state_dict

    state_plan, arrays = plan_state(to_state_dict(tree))
    size_bytes, compression = state_plan.size_bytes, row.compression

    def write(fetch: Fetch) -> None:
        if compression is None:
            write_file(path, state_plan, lambda i: elements_of(fetch(i)))
        else:
            from cordwood.formats.compressed.compress import compress

            buffers = plan_buffers(state_plan, fetch)
            write_stream(path, compress(buffers, compression, size_bytes=size_bytes))

    return Job(arrays, write)


def elements_of(leaf: Any) -> Any:
    """Return an array for a writer: on the host, unless it is one that is read later."""
    return leaf if isinstance(leaf, LazyArray) else whole_array(leaf)
