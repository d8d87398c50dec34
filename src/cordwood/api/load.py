"""load: a tree from a file or a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.checkpoint import open_for_one_load
from cordwood.errors import CordwoodError, MismatchError
from cordwood.io.gc_pause import gc_paused
from cordwood.io.progress import Report
from cordwood.loading.cast import Cast
from cordwood.loading.match_like import Extra, Missing
from cordwood.plan.path_patterns import Select
from cordwood.plan.transpose_leaves import Transpose
from cordwood.sharding.partition_rules import Rules

T = TypeVar("T")
_ATTEMPTS = 20


@overload
def load(
    path: str | os.PathLike[str],
    like: None = None,
    *,
    mmap: bool = False,
    to: Literal["jax", "numpy"] | None = None,
    verify: bool | None = None,
    strict: bool = True,
    cast: bool | Cast = False,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    missing: Missing = "error",
    extra: Extra = "error",
    alias: bool = True,
    nest: bool = False,
    transpose: Transpose | None = None,
    mesh: Any = None,
    rules: Rules | None = None,
    shardings: Any = None,
    progress: Report | None = None,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
) -> Any: ...


@overload
def load(
    path: str | os.PathLike[str],
    like: T,
    *,
    mmap: bool = False,
    to: Literal["jax", "numpy"] | None = None,
    verify: bool | None = None,
    strict: bool = True,
    cast: bool | Cast = False,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    missing: Missing = "error",
    extra: Extra = "error",
    alias: bool = True,
    nest: bool = False,
    transpose: Transpose | None = None,
    mesh: Any = None,
    rules: Rules | None = None,
    shardings: Any = None,
    progress: Report | None = None,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
) -> T: ...


@gc_paused()  # until the index is gone: the collector would look through all of it
def load(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    mmap: bool = False,
    to: Literal["jax", "numpy"] | None = None,
    verify: bool | None = None,
    strict: bool = True,
    cast: bool | Cast = False,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    missing: Missing = "error",
    extra: Extra = "error",
    alias: bool = True,
    nest: bool = False,
    transpose: Transpose | None = None,
    mesh: Any = None,
    rules: Rules | None = None,
    shardings: Any = None,
    progress: Report | None = None,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
) -> Any:
    """Load a tree that `save` wrote, or Flax, safetensors, Orbax ... (docs/format.md lists all).

    Args:
        path: the file, whose suffix says the format (or its bytes, where that is unknown), or the
            directory, or the URL of one.
        like: a tree of the structure, shapes and dtypes to expect, of arrays or
            jax.ShapeDtypeStructs. The result has its types, its kinds of array, its
            shardings and weak types. Static fields of its nodes, and functions, classes and
            PyTreeDefs among its leaves, are neither stored nor compared: the result has those of
            `like`. Empty containers may be on one side alone. Without it, the result has those
            that were saved, as far as the format keeps them, named tuples and dataclasses as dicts
            of fields.
        mmap: map the file instead of reading it. numpy leaves are read-only views into the
            mapping and keep it open; jax arrays on CPU alias it.
        to: "jax" or "numpy": what array leaves become, instead of what they were.
        verify: check digests. None: yes, unless `mmap`.
        strict: False ignores leaves that `like` has not, and differences in shape and dtype.
        cast: True converts dtypes to those of `like`. Without `like`, a floating dtype ("bf16",
            jnp.float32) for all floating arrays, or a mapping of patterns to dtypes, of which the
            first that takes a leaf counts: {"embed/ids": "int32", "**": "bf16"}. A pattern casts
            floating arrays only; an integer array is cast by an exact entry alone, the whole key
            path of that one leaf without wildcards (as `rename` has renamed it). A conversion from
            or to integers that would change a value is an error.
        select: a pattern, or several: load only the leaves whose key paths, as `open` lists
            them, one of them takes. `*` is any part of a key, `**` any number of keys; a pattern
            that matches a container takes all in it; one that begins with '!' takes away.
            Without `like`, a list that loses elements becomes a dict of them by position.
        rename: other key paths for leaves or containers of the checkpoint: {"encoder":
            "params/backbone"}; each `*` or `**` stands for what it stands for on the other side.
            `select` goes by the names before.
        missing: what becomes of leaves of `like` that are not in the checkpoint or not selected:
            "error", or "keep": they stay what they are in `like`, whatever `mesh` says, also where
            None is stored. One that has only a shape is an error.
        extra: what becomes of selected leaves that are not in `like`: "error" or "ignore".
        alias: False makes jax copy into memory of its own, so that a donated step need not.
        nest: turn joined names into nested dicts: those of a file of another writer, or the keys
            of a flat dict.
        transpose: patterns of matrices that are stored as (out, in), as PyTorch does, and come
            back as (in, out): ["**/kernel"], over the key paths as `rename` leaves them. Without
            it a square matrix fits `like` as it is stored, and no error says so. For arrays of
            more axes a mapping says their order, as numpy.transpose takes it:
            {"conv/kernel": (2, 3, 1, 0), "**/kernel": (1, 0)}; the first that takes a leaf counts.
            Arrays of less than two axes stay as they are. `like` and shardings are for what comes
            back.
        mesh: a jax Mesh: arrays become jax arrays on it, replicated where nothing else is said.
            Scalars, and arrays of dtypes that jax lacks, stay as they are.
        rules: (regular expression, PartitionSpec), tried in order with `re.search` on the leaf's
            keys joined by '/'; the first that is found counts. Arrays without axes are
            replicated, and a spec is cut to the number of axes. Needs `mesh`.
        shardings: a tree of jax Shardings, Formats and PartitionSpecs (these need `mesh`), or a
            flat dict of them by key paths with '.' or '/'; an entry holds for all leaves under
            it. It counts before `rules`, and those before the shardings of `like`. Each process
            reads what its own devices need, once however many of them hold it.
        progress: called now and then with a `cordwood.results.Progress`: how many bytes were read.
        format: the name of the format of a file, where the suffix does not say it, or of a
            directory, which is then not searched for an index of another format.
        prefix: which tree of a directory, or item of an Orbax checkpoint. None: the one saved
            without a prefix, or the only one.
        max_bytes: how far a compressed file may grow, and all compressed members of a `.npz`.
            None: to 4 GiB (256 MiB for zstd frames that do not tell their size), or 1100 times
            its size if that is more: only a large tree that is nearly all one value needs it.

    Returns:
        The tree. Eagerly loaded numpy arrays are writable and own their memory. Beside it a load
        takes some MiB; but a deflated member of a `.npz`, and one in Fortran order that cannot be
        cut along its last axis, is held whole until its array is filled.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        IncompleteCheckpointError: there is a directory without an index; if it is one of steps,
            the message lists them and names the newest.
        PrefixError: there is no such tree, or none is asked for and there are several.
        FormatError: the file is not what its format says; names the byte offset.
        LimitError: a compressed file holds more than `max_bytes`.
        CorruptionError: stored bytes do not match their digest; names file and byte range.
        MismatchError: the checkpoint does not fit `like`; lists every leaf that differs. Or a
            64-bit leaf is to become a jax array while jax's 64-bit types are off. Or shapes
            cannot be cut as shardings say, or a pattern of `select`, `rename`, `cast` or
            `transpose` matches nothing, or nothing that it can change.
        ValueError: a mesh is missing, no rule matches a leaf, or a sharding is for no leaf.
    """
    open_it = open_checkpoint if mmap else open_for_one_load
    attempts = _ATTEMPTS
    while True:
        checkpoint = open_it(path, format=format, prefix=prefix, max_bytes=max_bytes)
        with checkpoint:
            try:
                return checkpoint.load(
                    like,
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
                    mesh=mesh,
                    rules=rules,
                    shardings=shardings,
                    progress=progress,
                )
            except CordwoodError as e:
                # A save may have replaced it meanwhile, and removed files that were not open yet.
                attempts -= 1
                if not attempts or checkpoint.is_current():
                    if isinstance(e, MismatchError):  # the message says all; hide internal frames
                        raise e.with_traceback(None) from e.__cause__
                    raise
