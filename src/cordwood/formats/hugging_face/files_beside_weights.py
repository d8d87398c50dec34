"""The files beside the weights in a directory of the hub: configuration, tokenizer, model card."""

from __future__ import annotations

from fnmatch import fnmatch

from cordwood.formats.format_protocol import FilesBeside
from cordwood.io.open_files import LocalFile, read_whole
from cordwood.storage.directories import list_names
from cordwood.storage.locations import Location, Url, require_local
from cordwood.storage.paths import is_within, kind_at
from cordwood.storage.readable_directory import NotAFile

# https://huggingface.co/docs/transformers/main_classes/tokenizer lists the files of tokenizers.
_PATTERNS = (
    *("*config.json", "*tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.model", "*.tiktoken", "chat_template*"),
    *("README.md", "LICENSE*", "NOTICE*"),
)
MAX_FILE_BYTES = 64 << 20
_MAX_FILES = 100


def files_beside_weights(location: Location) -> FilesBeside:
    """Return the files of a directory that belong to a model, and the names of all others.

    A symbolic link is followed within the directory and to the `blobs` of Hugging Face's cache. One
    that leads elsewhere is left out, as is a file of more than 64 MiB.
    """
    if isinstance(location, Url) and location.is_hub:
        return _beside_on_hub(location)
    path = require_local(location).text
    files: dict[str, bytes] = {}
    left_out = []
    for name in list_names(path):
        if _is_of_weights(name):
            continue
        what = kind_at(f"{path}/{name}")
        if name.startswith(".") or what not in ("a file", "a folder"):
            continue
        if what == "a folder":
            left_out.append(f"{name}/")
            continue
        if not (_is_of_model(name) and len(files) < _MAX_FILES and _stays_inside(path, name)):
            left_out.append(name)
            continue
        with LocalFile(f"{path}/{name}") as file:
            if file.size_bytes > MAX_FILE_BYTES:
                left_out.append(name)
                continue
            files[name] = read_whole(file, limit_bytes=MAX_FILE_BYTES)
    return FilesBeside(files, left_out)


def _beside_on_hub(url: Url) -> FilesBeside:
    """Return the files of a model on the hub, of which those that belong to it are fetched."""
    from cordwood.storage.hub.hub_directory import HubDirectory

    directory = HubDirectory(url)
    files: dict[str, bytes] = {}
    left_out = []
    for name, size in sorted(directory.sizes(".").items()):
        if name.startswith(".") or _is_of_weights(name):
            continue
        if isinstance(size, NotAFile):
            left_out.append(f"{name}/")
        elif _is_of_model(name) and len(files) < _MAX_FILES and size <= MAX_FILE_BYTES:
            files[name] = directory.read(name, limit_bytes=MAX_FILE_BYTES)
        else:
            left_out.append(name)
    return FilesBeside(files, left_out)


def _is_of_weights(name: str) -> bool:
    return fnmatch(name, "*.safetensors") or fnmatch(name, "*.safetensors.index.json")


def _is_of_model(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _PATTERNS)


def _stays_inside(path: str, name: str) -> bool:
    file = f"{path}/{name}"
    return is_within(file, path) or is_within(file, f"{path}/../../blobs")
