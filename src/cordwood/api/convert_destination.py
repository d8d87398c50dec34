"""Checks of the destination of a conversion: an existing checkpoint, and a manager's record."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from cordwood.api.detect import detect
from cordwood.encoding.step_record import KEY, PREFIX_KEY, decode_record
from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.formats.detect_format import written_format
from cordwood.formats.format_protocol import WritableFormat, is_directory_format
from cordwood.formats.packs.cordwood_json import decode_index
from cordwood.formats.packs.open import read_index_bytes, store_at
from cordwood.formats.registry import file_formats, suffixes_of
from cordwood.formats.step_names import number_in_name
from cordwood.storage.paths import is_empty_file, kind_at, last_name, parse_url
from cordwood.storage.staging_directory import locate_directory

_log = logging.getLogger("cordwood")


def refuse_unknown_suffix(path: str | os.PathLike[str]) -> None:
    """Raise UnsupportedFormatError if a new directory would have the name of a file.

    `save` makes a directory of any name without a known file suffix. The path of a conversion is
    often typed by hand, and a suffix of letters is meant for a file.
    """
    text = os.fspath(path)
    suffix = Path(text).suffix
    if text.endswith("/") or not suffix[1:].isalpha() or kind_at(path) != "nothing":
        return
    suffixes = ", ".join(suffixes_of(file_formats(writable=True)))
    raise UnsupportedFormatError(
        f"{text}: the suffix {suffix!r} is of no format that cordwood writes: expected {suffixes}, "
        'or for a directory of that name a slash at the end or layout="packs" (--layout packs)'
    )


def refuse_existing(
    path: str | os.PathLike[str],
    format: WritableFormat,
    prefixes: Collection[str],
    *,
    beside: bool,
    overwrite: bool,
) -> None:
    """Raise FileExistsError unless the trees of these prefixes may be written to `path`.

    Args:
        path: the destination, which `refuse_foreign` has accepted.
        format: the format to write.
        prefixes: the prefixes of the trees to write; "" for a tree without one.
        beside: the caller has named the tree, so trees of other prefixes may stay beside it.
        overwrite: trees of these prefixes may be replaced.
    """
    existing = _prefixes_at(path, format)
    if existing is None:
        return
    text = os.fspath(path)
    if overwrite:
        others = sorted(set(existing) - set(prefixes))
        if others and not beside:
            what = f"it holds {_tree(others[0])}, which would stay beside what is converted"
            raise _exists(
                f"{what}: remove the directory, name the tree to write with to_prefix= "
                "(--to-prefix), or convert to another path",
                text,
            )
        return
    step = _step_at(path) if is_directory_format(format) else None
    if beside and step is None and set(prefixes).isdisjoint(existing):
        return
    what = "a checkpoint"
    with suppress(CordwoodError, OSError):
        what = detect(path).description
    if step is not None:
        what += f", step {step} of a CheckpointManager"
    elif beside:
        what += f", with {_tree(next(iter(prefixes)))}"
    hint = ""
    if is_directory_format(format) and not beside and step is None:
        hint = ", pass to_prefix= (--to-prefix) to write a tree beside it"
    raise _exists(
        f"the destination is already {what}: pass overwrite=True (--force) to replace it{hint}, or "
        "convert to another path",
        text,
    )


def _exists(what: str, path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, what, path)


def _tree(prefix: str) -> str:
    return f"the tree {prefix!r}" if prefix else "a tree without a prefix"


def _prefixes_at(path: str | os.PathLike[str], format: WritableFormat) -> list[str] | None:
    """Return the prefixes of the checkpoint at `path`, [""] for a file; None if there is none."""
    if not is_directory_format(format):
        return None if kind_at(path) == "nothing" or is_empty_file(path) else [""]
    if parse_url(path) is not None:
        data = store_at(path).read_index()
        return None if data is None else sorted(decode_index(data))
    place = Path(locate_directory(path))
    existing = written_format(place) if kind_at(place) == "a folder" else None
    return None if existing is None else list(existing.items(place))


def _step_at(path: str | os.PathLike[str]) -> int | None:
    """Return the step of the manager's record in the directory of packs at `path`, or None."""
    with suppress(CordwoodError, OSError):
        item = decode_index(read_index_bytes(store_at(path))).get("")
        metadata = item.get("metadata") if type(item) is dict else None
        text = metadata.get(KEY) if type(metadata) is dict else None
        if type(text) is str:
            return decode_record(text, os.fspath(path)).step
    return None


def without_other_steps_record(
    strings: Mapping[str, str],
    destination: str | os.PathLike[str],
    format: WritableFormat,
    *,
    source: str,
) -> Mapping[str, str]:
    """Return the strings beside a tree, without a manager's record of another step.

    A record holds the metrics, extras and states of its step. Under the name of another step they
    would be taken for the metrics of that step. The record stays if the destination has the same
    number, or no step number as its name. A directory for the hub never has a record, because
    others read it.
    """
    if is_directory_format(format) and "prefix" not in format.save_options:
        return {name: value for name, value in strings.items() if name not in (KEY, PREFIX_KEY)}
    number = number_in_name(last_name(destination))
    if KEY not in strings or number is None:
        return strings
    step = None
    with suppress(CordwoodError):
        step = decode_record(strings[KEY], source).step
    if step == number:
        return strings
    _log.warning(
        "%s: the metrics, extras and states of %s are left out, for they are not those of step %d; "
        "trees are copied",
        os.fspath(destination),
        source if step is None else f"step {step}",
        number,
    )
    return {name: value for name, value in strings.items() if name != KEY}
