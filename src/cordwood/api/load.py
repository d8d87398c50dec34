"""load: read a tree from a file or a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from cordwood.deltas.load_version import load_version
from cordwood.errors import MismatchError
from cordwood.io.progress import ProgressOption
from cordwood.loading.load_options import (
    Cast,
    Extra,
    LoadOptions,
    Migration,
    Missing,
    OpenAndReadOptions,
)
from cordwood.loading.load_tree import load_checkpoint
from cordwood.loading.refuse_delta import PublishedDeltaError
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.transpose_leaves import Transpose
from cordwood.recipes.recipe import Recipe
from cordwood.sharding.partition_rules import Rules
from cordwood.storage.locations import parse_location

T = TypeVar("T")


@overload
def load(
    path: str | os.PathLike[str], like: None = None, **options: Unpack[OpenAndReadOptions]
) -> Any: ...


@overload
def load(path: str | os.PathLike[str], like: T, **options: Unpack[OpenAndReadOptions]) -> T: ...


def load(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    mmap: bool = False,
    to: Literal["jax", "numpy"] | None = None,
    verify: bool | None = None,
    strict: bool = True,
    cast: bool | Cast | None = False,
    select: Select | None = None,
    rename: Rename | None = None,
    missing: Missing = "error",
    extra: Extra = "error",
    alias: bool = True,
    nest: bool = False,
    transpose: Transpose | None = None,
    recipe: Recipe | None = None,
    mesh: Any = None,
    rules: Rules | None = None,
    shardings: Any = None,
    migrations: Sequence[Migration] = (),
    progress: ProgressOption = None,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
) -> Any:
    """Load a tree from a checkpoint of cordwood, Flax, safetensors, Orbax or another library.

    docs/format.md lists all formats that are read.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. The suffix of a
            file gives its format; if the suffix is unknown, the bytes of the file do.
            `run/latest` is the newest complete step of `run`, `run/best` the best by its metric.
            Of a version that a `WeightPublisher` has written as a delta, the tree is returned: it
            is made of the versions before it.
        like: a tree with the expected structure, shapes and dtypes; its leaves are arrays or
            jax.ShapeDtypeStructs. The result has its types, kinds of arrays, shardings and weak
            types. Static fields of its nodes, and functions, classes and PyTreeDefs among its
            leaves, are neither stored nor compared: the result has those of `like`. Empty
            containers may be on one side only. Without `like`, the result is what was saved, as
            far as the format keeps it; named tuples and dataclasses become dicts of their fields.
        mmap: map the file instead of reading it. numpy leaves are read-only views into the
            mapping and keep it open; jax arrays on CPU share its memory. No other program may
            write to the file meanwhile: the arrays would change, and a program that cuts the file
            short ends this process (SIGBUS). Programs that replace the file do no harm.
        to: "jax" or "numpy": load all array leaves as arrays of this library. None: as they were
            saved, or as they are in `like`.
        verify: check digests. None: yes, unless `mmap` is true.
        strict: False ignores stored leaves that `like` lacks, and containers of other kinds.
            Shapes, dtypes and kinds of leaves are always checked.
        cast: other dtypes. With `like`, True converts to its dtypes. With or without it, a floating
            dtype ("bf16", jnp.float32) for all floating arrays, or a mapping of patterns to
            dtypes, in which the first matching entry counts:
            `{"embed/ids": "int32", "**": "bf16"}`. A pattern casts floating arrays only. An integer
            array is cast only by an entry that is its whole key path, without wildcards (after
            `rename`). The arrays that are cast have that dtype in the result, whatever the dtype in
            `like` (floating for floating, integer for integer); all others are compared with
            `like`. A conversion from or to integers that would change a value is an error.
        select: a pattern, or several: load only the leaves whose key paths (as `open` lists them)
            match one of them. `*` matches any part of a key, `**` any number of keys. A pattern
            that matches a container selects everything in it. A pattern that begins with '!'
            excludes. Without `like`, a list that loses elements becomes a dict of the remaining
            elements by position.
        rename: new key paths for leaves or containers of the checkpoint, for example
            `{"encoder": "params/backbone"}`; "" is the root. Each `*` or `**` of the new path takes
            the text that the wildcard of the old path matched. A list of new paths loads a leaf
            several times: `{"embed/w": ["embed/w", "head/w"]}`. `select` uses the names before
            renaming, and what it leaves out is in nobody's way. `like` says what the containers
            around renamed leaves are.
        missing: what to do with leaves of `like` that are not in the checkpoint or not selected:
            "error"; or "keep": they stay as they are in `like`, whatever `mesh` says, also where
            the checkpoint has None. A leaf that has only a shape and a dtype is still an error.
        extra: what to do with selected leaves that are not in `like`: "error" or "ignore".
        alias: on CPU, let jax use the memory that the file was read into. False makes jax copy
            into its own memory, so that a step that donates the arrays need not copy them.
        nest: split joined names into nested dicts: the names of a file of another writer, or the
            keys of a flat dict.
        transpose: patterns of matrices that are stored as (out, in), as PyTorch does, and are
            returned as (in, out): `["**/kernel"]`. The patterns match key paths after `rename`.
            Without it a square matrix fits `like` as it is stored, and no error is raised. For
            arrays of more axes, pass a mapping of patterns to the order of axes, as
            numpy.transpose takes it: `{"conv/kernel": (2, 3, 1, 0), "**/kernel": (1, 0)}`; the
            first matching entry counts. Arrays of fewer than two axes stay as they are. `like`
            and shardings describe the transposed arrays.
        recipe: rules that make other names, shapes and axes of those in the checkpoint, as for the
            weights of another library (`cordwood.recipes.Recipe`). `like` and shardings describe
            what it makes, and each process reads only what its devices need of it. `select` uses
            the names in the checkpoint; `rename` and `transpose` cannot be given with it.
        mesh: a jax Mesh: arrays become jax arrays on it, replicated unless `rules`, `shardings`
            or `like` say otherwise. Scalars, and arrays of dtypes that jax lacks, stay as they
            are.
        rules: pairs (regular expression, PartitionSpec), tried in order with `re.search` on the
            leaf's keys joined by '/'; the first match counts. Arrays without axes are replicated,
            and a spec is cut to the number of axes. Needs `mesh`.
        shardings: a tree of jax Shardings, Formats and PartitionSpecs (these need `mesh`), or a
            flat dict of them by key paths with '.' or '/'. An entry applies to all leaves under
            it. `shardings` takes precedence over `rules`, and `rules` over the shardings of
            `like`. Each process reads only what its own devices need, and reads it once.
        migrations: other options for checkpoints that were saved before the tree changed, each a
            dict of select, rename, transpose, recipe, cast, missing, extra and strict:
            `[{"rename": {"opt/**": "opt/1/**"}}]`. They are tried in order, and only if the
            checkpoint does not fit `like` without them; each takes the place of the same options
            of the call. The log (INFO) says which one was used.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, which has the number of bytes that
            were read. None: neither.
        format: the name of the format, for a file whose suffix does not give it. For a directory,
            no other format is looked for.
        prefix: the name of one tree of a directory, or of one item of an Orbax checkpoint. None:
            the tree that was saved without a prefix, or the only one.
        max_bytes: the limit for the decompressed size, in bytes, of a compressed file, or of all
            compressed members of a `.npz` together. None: 4 GiB (256 MiB for zstd frames that do
            not give their size), or 1100 times the file size if that is more. Only a large tree
            that is nearly all one value needs a higher limit.

    Returns:
        The tree. numpy arrays are writable and own their memory, except with `mmap`. A load needs
        memory for the tree and a few MiB more; a deflated member of a `.npz`, and a member in
        Fortran order that cannot be cut along its last axis, is held whole until its array is
        filled.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: the directory has no index. If it is a directory of steps, the
            message lists them and names the newest.
        PrefixError: there is no tree of that prefix; or there are several and none was chosen.
        FormatError: the file does not follow its format; names the byte offset.
        LimitError: a compressed file holds more than `max_bytes`.
        CorruptionError: stored bytes do not match their digest; names file and byte range.
        FileChangedError: another program wrote to a file in place while it was read.
        MismatchError: the checkpoint does not fit `like`; lists every leaf that differs. Or a
            64-bit leaf would become a jax array while jax's 64-bit types are off. Or a shape
            cannot be cut as its sharding says. Or it fits by no migration either: the message has
            the problems of each. Or a pattern of `select`, `rename`, `cast` or
            `transpose` matches nothing, or nothing that it can change.
        ValueError: a mesh is missing, no rule matches a leaf, or a sharding matches no leaf.
    """
    location = parse_location(path)
    options = LoadOptions(
        mmap=mmap,
        to=to,
        verify=verify,
        strict=strict,
        cast=cast,
        select=select,
        rename=rename,
        missing=missing,
        extra=extra,
        alias=alias,
        nest=nest,
        transpose=transpose,
        recipe=recipe,
        mesh=mesh,
        rules=rules,
        shardings=shardings,
        migrations=migrations,
        progress=progress,
    )
    try:
        return load_checkpoint(
            location,
            like,
            options,
            format=format,
            prefix=prefix,
            max_bytes=max_bytes,
            is_published_refused=False,
        )
    except PublishedDeltaError as e:
        return load_version(e.location, like, options)
    except MismatchError as e:
        raise e.with_traceback(None) from e.__cause__  # without the frame of `load_checkpoint`
