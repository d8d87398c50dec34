"""convert: copy a checkpoint into another format, a few MiB at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Literal

from cordwood.bulk.bulk_arguments import bulk_options, with_journal_beside
from cordwood.bulk.call_text import call_text
from cordwood.bulk.run_bulk import BulkRun, bulk_run
from cordwood.bulk.work_journal import refuse_files_of_other_call
from cordwood.converting.conversion import MAX_NAMED, Conversion
from cordwood.converting.convert_in_tasks import (
    WrittenFiles,
    convert_in_tasks,
    require_task_writer,
)
from cordwood.converting.convert_units_task import TreeConversion
from cordwood.converting.files_of_model import files_of_source, files_to_write
from cordwood.converting.part_to_convert import (
    LeafOptions,
    accepted_losses,
    part_to_convert,
    size_of_leaves,
)
from cordwood.converting.plan_conversion import plan_conversion
from cordwood.converting.record_of_other_step import without_other_steps_record
from cordwood.converting.refuse_existing import refuse_existing, refuse_unknown_suffix
from cordwood.converting.source_leaves import StoredLeaves, scratch_near
from cordwood.converting.trees_to_convert import TreesToConvert, require_all_trees, trees_to_convert
from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.detect_format import format_of
from cordwood.formats.format_protocol import FilesBeside, SaveOptions, TaskWriter
from cordwood.formats.load_format import writer_of
from cordwood.formats.plan_save import require_strings, write_save
from cordwood.formats.stored_trees import stored_trees
from cordwood.formats.table import DEFAULT, require_name
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.progress import ProgressMeter, ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.load_options import Cast
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.tree_reference import refer_to_tree
from cordwood.message_text import first_names, printable
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.transpose_leaves import Transpose
from cordwood.recipes.recipe import Recipe
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.locations import LocalPath, Location, parse_local_path, parse_location
from cordwood.storage.paths import (
    absolute_location,
    absolute_path,
    refuse_to_replace,
    would_replace,
)
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import in_worker


@in_worker
def convert(
    source: str | os.PathLike[str] | Checkpoint,
    destination: str | os.PathLike[str],
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    transpose: Transpose | None = None,
    recipe: Recipe | None = None,
    cast: Cast | None = None,
    lossy: bool = False,
    format: str | None = None,
    compression: Literal["zstd", "blosc", "archive"] | None = None,
    metadata: Mapping[str, str] | None = None,
    prefix: str | None = None,
    to_prefix: str | None = None,
    overwrite: bool = False,
    max_shard_bytes: int | None = None,
    files_from: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Convert a checkpoint to another path, in any format that `save` writes.

    Elements are copied a few MiB at a time. Memory stays below about 250 MiB plus the size of one
    decoded chunk, for a checkpoint of any size. A `.msgpack.zst` or `.msgpack.gz` is a single
    stream: it is decompressed first, into a file without a name in the directory of
    `destination`, which needs room for both. Everything that is read is checked against its
    digests. The result is as durable as that of `save`, and until this returns, the previous
    checkpoint at `destination` is unchanged.

    A source of several trees (a directory with prefixes, an Orbax composite) is converted whole
    into a directory. Its trees are written one after another, each atomically. If one fails, the
    trees before it stay at the destination. Where one tree of several would be written that nobody
    has chosen (to a file, or with options that apply to one tree), that is a LossError.

    From a directory of the hub to another one (format="hugging_face") the files of the
    configuration and the tokenizer, the model card and the licence are copied unchanged. The result
    names all other files, and all of them where the destination has another format; then a warning
    is logged too. `files_from` writes them on the way back.

    A step of a `CheckpointManager` keeps its metrics, extras and items if the destination has the
    same number as its name, or no step number. Under the number of another step they are left
    out, and a warning is logged.

    Args:
        source: the path of a checkpoint of any format that `load` reads, or an open checkpoint.
        destination: the path to write, as in `save`. An existing checkpoint is an error unless
            `overwrite` is true.
        select: patterns of key paths, as in `load`: convert only those leaves.
        rename: new key paths for leaves and containers, as in `load`.
        transpose: patterns of matrices that are written transposed, or a mapping of patterns to
            axes, as in `load`; the patterns match key paths after `rename`.
        recipe: rules that make other names, shapes and axes of those of the source, as in `load`:
            `recipe.inverse()` writes them back.
        cast: a floating dtype for all floating arrays, or a mapping of patterns to dtypes, as in
            `load`. Integers are cast by an exact key path only, and never change their values.
        lossy: True leaves out what the format cannot store, leaves of the source that cannot be
            read, and trees beside the one that is written, and accepts that arithmetic of a recipe
            rounds. False: that is an error.
        format: the name of the format to write, as in `save`. Also "hugging_face": a new
            directory of safetensors files as on the Hugging Face hub, `model.safetensors` or
            `model-00001-of-00004.safetensors` and so on with their index. It holds arrays only,
            named by their key paths joined with dots. And "orbax": a new checkpoint that Orbax
            restores, in which tuples and fields are recorded as lists and keys.
        compression: with format="zarr", "zstd", "blosc" or "archive", as in `save`.
        metadata: strings to store beside the tree. None: those of the source.
        prefix: the tree of the source, as in `load`. None: all trees, each under its own prefix,
            if `destination` is a directory. A file holds one tree, and select, rename, transpose,
            to_prefix and patterns of cast apply to one tree: then None is the tree that was saved
            without a prefix, or the only one. Other trees are a LossError then, except with
            `select`, which names what is converted; the result lists them.
        to_prefix: the prefix of the tree in the destination directory; trees of other prefixes
            stay. None: a single tree is written without a prefix.
        overwrite: replace an existing checkpoint at `destination`. Anything that is not a
            checkpoint is never replaced, and neither are trees of other prefixes.
        max_shard_bytes: with format="packs" or "hugging_face", the number of bytes of arrays in
            one file; a larger array has its own file. None: 1 GiB or more; with
            format="hugging_face", all arrays in one file.
        files_from: for format="hugging_face", a directory of the hub or `hf://org/model`, whose
            files of the configuration and the tokenizer, model card and licence are written beside
            the weights. None: those of the source.
        max_bytes: the limit for the decompressed size of a compressed source, in bytes, as in
            `open`.
        scratch: a directory with room for the contents of a compressed source, and for the largest
            array that `recipe` or `transpose` rearrange. None: the
            directory of `destination`, or that of the source if `destination` is in an object
            store.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, which has the number of bytes of
            elements that were read, and the current leaf. None: neither.
        executor: any executor of `concurrent.futures`, whose workers write the files of
            format="packs" or "zarr", as for `cordwood.copy`. Each opens the source. This process
            writes the index. None: this process does all.
        part: (i, n) writes the data files of part i of n, counted from 0, and no index. The call
            without `part` writes what is missing, and the index. Not with format="zarr" on a disk.
        journal: a directory that lists the tasks that are done, as for `cordwood.verify`. None:
            with `executor` or `part`, `.NAME.cordwood-journal` beside a local directory of
            format="packs", by which any later call with the same options goes on, and which
            other calls that write to there refuse; for `part` and a store it must be given. Not
            with format="zarr" on a disk.

    Returns:
        The paths, formats and sizes of the conversion; with `lossy`, also what was lost. With
        `part`, the number of leaves is 0, and the size and the number of files are of the part.

    Raises:
        ValueError: an argument is wrong; or the journal is that of a call with other options.
        FileExistsError: there is a checkpoint at `destination`; names its format and, for a step
            of a manager, the step.
        NotACheckpointError: there is something else at `destination`. It is a FileExistsError too.
        ValueError: `destination` is the source, or a part of it.
        PrefixError: the source has no tree of that prefix; or several, where one is needed.
        LossError: the format cannot store some of the contents; lists all of them.
        UnsupportedFormatError: leaves of the source cannot be read; lists all of them.
        MismatchError: a pattern matches nothing, or a cast would change integers.
        StorageError: there is no room for the contents of a compressed source; names the size. Or
            another call converts the same; names its process.
        ProcessError: the executor lost all its workers; or the source was replaced meanwhile, or
            workers see other files there.
        Exception: all errors of `open` and `save`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.ones(4, np.float32)})
    >>> done = convert("example.safetensors", "example", cast="bf16", overwrite=True)
    >>> done.format, done.size_bytes
    ('packs', 8)
    """
    if isinstance(select, (set, frozenset)):  # whose order is another one in each process
        select = sorted(select, key=lambda pattern: (pattern.startswith("!"), pattern))
    target = parse_location(destination)
    bulk = bulk_options(executor, part, journal)
    to_format = format_for_saving(target, format=format, prefix=None, exports=True)
    is_directory = to_format.is_directory
    holds_many = "prefix" in to_format.save_options
    if to_prefix is not None and not holds_many:
        raise ValueError(
            f"{target}: to_prefix= is for directories; a file, and an archive in an object store, "
            "hold one tree"
        )
    if is_directory and format is None and isinstance(target, LocalPath):
        refuse_unknown_suffix(target)
    folder = None if scratch is None else parse_local_path(scratch, purpose="for scratch=")
    origin = source if isinstance(source, Checkpoint) else locate_checkpoint(parse_location(source))
    name = origin.path if isinstance(origin, Checkpoint) else str(origin)
    if would_replace(str(target), name):
        raise ValueError(
            f"{name} would be converted into itself or a part of it: write to another path"
        )
    if isinstance(origin, Checkpoint):
        refuse_to_replace(str(target), origin._reader.made_of, result="result")
    writer: TaskWriter | None = None
    if to_format == DEFAULT and isinstance(origin, Location):
        bulk = with_journal_beside(bulk, target)
    if bulk.divides:
        writer = require_task_writer(to_format, origin, target, bulk)
    from_where = absolute_location(origin) if isinstance(origin, Location) else f"{name} (open)"
    work = call_text(
        f"convert {from_where} to {absolute_location(target)}",
        select=select,
        rename=rename,
        transpose=transpose,
        recipe=recipe,
        cast=cast,
        lossy=lossy or None,
        format=None if to_format == DEFAULT else to_format.name,
        compression=compression,
        metadata=metadata,
        prefix=prefix,
        to_prefix=to_prefix,
        max_shard_bytes=max_shard_bytes,
    )
    raise_unreported_failures()
    wait_for_saves(str(target))
    one_tree = bool(rename) or isinstance(cast, Mapping) or not holds_many
    one_tree = one_tree or transpose is not None or recipe is not None
    trees, beside = TreesToConvert({prefix: to_prefix}), FilesBeside()
    if not isinstance(origin, Checkpoint):
        trees = trees_to_convert(
            stored_trees(origin),
            prefix=prefix,
            to_prefix=to_prefix,
            selects=select is not None,
            one_tree=one_tree,
        )
        beside = files_of_source(origin, format_of(origin, format=None, prefix=None))
    elif origin._reader.location is not None:
        beside = files_of_source(origin._reader.location, require_name(origin.format))
    given = None if files_from is None else parse_location(files_from)
    beside_weights = files_to_write(beside, to_format, given)
    if beside.files and not beside_weights.files:
        log.warning(
            "%s: not converted: %s; %s has no place for files beside the weights: format="
            '"hugging_face" copies them, and files_from=%r writes them on the way back',
            *(name, printable(first_names(list(beside.files), MAX_NAMED)), to_format.name, name),
        )
    if trees.left_out:
        log.warning("%s: not converted: %s", name, printable(", ".join(trees.left_out)))

    def refuse() -> None:
        refuse_files_of_other_call(target, work)
        writer_of(to_format).refuse_foreign(to_format, target)
        prefixes = [each or "" for each in trees.prefixes.values()]
        beside = to_prefix is not None
        refuse_existing(
            target,
            to_format,
            prefixes,
            beside=beside,
            overwrite=overwrite,
            # `combine` and `merge_lora` convert a checkpoint, and have no such option.
            has_to_prefix=not isinstance(origin, Checkpoint),
        )

    with ExitStack() as stack, gc_paused():
        stack.enter_context(after_interrupted_saves(str(target)))
        refuse()
        leaf_options = LeafOptions(select, rename, transpose, recipe, cast, lossy)
        parts = []
        for each, to in trees.prefixes.items():
            opened = stack.enter_context(
                _opened(origin, target, prefix=each, max_bytes=max_bytes, scratch=folder)
            )
            refuse_delta(opened._reader)
            chosen = part_to_convert(opened, to, leaf_options)
            strings = opened.metadata if metadata is None else metadata
            require_strings(strings)
            if metadata is None:
                strings = without_other_steps_record(strings, target, to_format, source=name)
            lost = accepted_losses(chosen, target, to_format, strings, lossy=lossy)
            strings = {} if lost else strings
            parts.append(chosen._replace(metadata=strings, lost=[*chosen.lost, *lost]))
        if not lossy:
            require_all_trees(trees.lost, name, str(target))
        directory = folder or scratch_near(name, target)
        sizes = [size_of_leaves(each.selected.stored.leaves, each.dtypes) for each in parts]
        meter = None
        report = stack.enter_context(progress_display(progress, "converting"))
        if writer is not None:
            part_count = 1 if bulk.part is None else bulk.part.total
            stack.enter_context(report_progress(sum(sizes) // part_count, report))
        elif report is not None:
            leaves_to_read = [leaf for each in parts for leaf in each.selected.stored.leaves]
            meter = ProgressMeter(size_of_leaves(leaves_to_read), report)
        sources = [
            StoredLeaves(each.checkpoint, each.selected, each.dtypes, meter, directory)
            for each in parts
        ]
        wait_for_saves(str(target))  # again, because decompressing a source takes time
        refuse()
        run: BulkRun | None = None
        if writer is not None and isinstance(origin, Location):
            run = stack.enter_context(bulk_run(bulk, work=work))
        written: list[WrittenFiles] = []
        for from_prefix, chosen, leaves in zip(trees.prefixes, parts, sources, strict=True):
            is_computed = any(file.tile_ends for file in chosen.checkpoint._reader.files)
            options = SaveOptions(
                chosen.to_prefix,
                chosen.metadata,
                compression,
                max_shard_bytes,
                files=beside_weights.files,
                page_cache=not is_computed,  # whose computation needs the processor
            )
            structure = chosen.selected.stored.structure
            plan, rendezvous = plan_conversion(to_format, target, structure, leaves, options)
            if run is None or writer is None or not isinstance(origin, Location):
                write_save(to_format, plan.save, Leaves(plan.leaves), rendezvous)
                continue
            tree = TreeConversion(
                refer_to_tree(chosen.checkpoint, origin, from_prefix),
                absolute_location(target),
                to_format.name,
                options,
                None if folder is None else absolute_path(folder),
                leaf_options,
            )
            written.append(convert_in_tasks(run, writer, tree, plan.save, bulk))
        if meter is not None:
            meter.finish()
        if run is not None and bulk.part is None:
            run.forget()
    is_part = bulk.part is not None
    return Conversion(
        name,
        str(target),
        parts[0].checkpoint.format,
        to_format.name,
        0 if is_part else sum([len(each.selected.stored.leaves) for each in parts]),
        sum([files.size_bytes for files in written]) if is_part else sum(sizes),
        (*trees.lost, *[line for each in parts for line in each.lost]),
        tuple([each.to_prefix or "" for each in parts]),
        (*trees.left_out, *beside_weights.left_out),
        tuple(beside_weights.files),
        part if is_part else None,
        sum([files.file_count for files in written]) if is_part else 0,
    )


def _opened(
    source: Location | Checkpoint,
    destination: Location,
    *,
    prefix: str | None,
    max_bytes: int | None,
    scratch: LocalPath | None,
) -> AbstractContextManager[Checkpoint]:
    """Open a source for a `with` block; an open checkpoint stays open after it."""
    if isinstance(source, Checkpoint):
        if (prefix, max_bytes, scratch) != (None, None, None):
            raise ValueError(
                f"{source.path} is open: pass prefix=, max_bytes= and scratch= to cordwood.open"
            )
        return nullcontext(source)
    if scratch is None:
        scratch = scratch_near(str(source), destination)
    return open_at(source, prefix=prefix, max_bytes=max_bytes, scratch=scratch)
