"""The files beside weights that a conversion takes along: configuration, tokenizer, model card."""

from __future__ import annotations

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.format_protocol import FilesBeside
from cordwood.formats.load_format import companion_reader_of
from cordwood.formats.table import Format
from cordwood.storage.locations import Location, Url


def files_of_source(source: Location, format: Format) -> FilesBeside:
    """Return the files beside the weights of a source; none if its format has no such files."""
    if not format.companions:
        return FilesBeside()
    return companion_reader_of(format).files_beside_weights(source)


def files_to_write(
    beside: FilesBeside, to_format: Format, files_from: Location | None
) -> FilesBeside:
    """Return the files to write, and the names of all others of the source.

    Args:
        beside: the files of the source.
        to_format: the format that is written.
        files_from: the directory whose files are written; None: those of the source.

    Raises:
        UnsupportedFormatError: `files_from` is in an object store.
        ValueError: the format has no files beside the weights, or the directory has none of them.
    """
    has_files = "files" in to_format.save_options
    if files_from is None:
        return beside if has_files else FilesBeside({}, sorted([*beside.files, *beside.left_out]))
    if not has_files:
        raise ValueError(
            f'files_from= is for format="hugging_face": {to_format.name} has no files beside the '
            "weights"
        )
    if isinstance(files_from, Url) and not files_from.is_hub:
        raise UnsupportedFormatError(
            f"{files_from}: files_from is a local directory or a model of the hub (hf://), not an "
            "object store: download its files first"
        )
    files = files_of_source(files_from, to_format).files
    if not files:
        raise ValueError(
            f"files_from: {files_from}: expected a directory with a config.json, a tokenizer or "
            "other files of a model"
        )
    return FilesBeside(files, sorted({*beside.files, *beside.left_out} - files.keys()))
