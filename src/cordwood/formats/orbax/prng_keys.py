"""`array_metadatas`: which arrays hold PRNG keys, and of which implementation."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import FormatError
from cordwood.formats.orbax.json_files import read_json
from cordwood.storage.readable_directory import ReadableDirectory

KEYS_FOLDER = "array_metadatas"
_PREFIX = "process_"


def read_key_implementations(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return the implementations of PRNG keys, by the names of leaves."""
    impls: dict[str, str] = {}
    if not directory.has(KEYS_FOLDER):
        return impls
    for file in sorted(directory.sizes(KEYS_FOLDER)):
        if not file.startswith(_PREFIX):
            continue
        path = f"{KEYS_FOLDER}/{file}"
        members = read_json(directory, path)
        entries = members.get("array_metadatas") if type(members) is dict else None
        if type(entries) is not list:
            raise FormatError(f"{directory.name}/{path}: expected an object with array_metadatas")
        for entry in entries:
            metadata = entry.get("array_metadata") if type(entry) is dict else None
            if type(metadata) is not dict or type(metadata.get("param_name")) is not str:
                raise FormatError(f"{directory.name}/{path}: {entry!r:.80} names no array")
            extension = metadata.get("ext_metadata")
            impl = extension.get("random_key_impl") if type(extension) is dict else None
            if impl is not None:
                if type(impl) is not str:
                    raise FormatError(f"{directory.name}/{path}: random_key_impl: {impl!r:.80}")
                impls[metadata["param_name"]] = impl
    return impls
