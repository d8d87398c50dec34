"""The steps below a directory that `cordwood serve` serves, as its readers list them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.read_small_file import regular_file_size
from cordwood.storage.step_storage import StepEntry
from cordwood.storage.storage_protocol import NamingRules

# The name, in each directory that is served, of a JSON object: the names of the finished steps in
# it, each with a text that changes with its index. No file has it.
LISTING = "cordwood-steps.json"


class ServedSteps:
    """The steps below the URL of a directory that `cordwood serve` serves.

    Args:
        url: the URL.
        rules: the naming rules of their format.
    """

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.location = url.plain
        self._rules = rules

    def location_of(self, entry: str) -> Url:
        return self.location.child(entry)

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        store = ObjectStore(self.location)
        where = store.url_of(LISTING)
        data = store.read(LISTING, limit_bytes=self._rules.max_index_bytes).data
        if data is None:
            raise UnsupportedFormatError(
                f"{self.location.address}: this web server lists no steps: expected a directory "
                "that `cordwood serve` serves, or a URL of s3://, gs:// or az://"
            )
        stamps = parse_json(data, where)
        if not isinstance(stamps, dict) or not all(type(each) is str for each in stamps.values()):
            raise FormatError(f"{where}: expected a JSON object of strings")
        return {name: StepEntry(stamp) for name, stamp in stamps.items() if matches(name)}


def listing_of(root: int, folder: str, index_name: str) -> bytes:
    """Return the listing of a directory. What symbolic links lead to is left out.

    Args:
        root: a descriptor of the directory that is served.
        folder: the path below it; "" for itself.
        index_name: the file that makes a directory a finished step.

    Raises OSError and ValueError as `open_beneath`.
    """
    stamps: dict[str, str] = {}
    fd = open_beneath(root, folder, directory=True) if folder else root
    try:
        for name in sorted(os.listdir(fd)):
            with suppress(OSError, CorruptionError, UnicodeEncodeError):
                name.encode()  # others cannot be in a URL
                if not name.startswith("."):
                    stamps[name] = _stamp(fd, f"{name}/{index_name}")
    finally:
        if folder:
            os.close(fd)
    return json.dumps(stamps, separators=(",", ":")).encode()


def _stamp(folder: int, index_path: str) -> str:
    fd = open_beneath(folder, index_path)
    try:
        size = regular_file_size(fd, index_path)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return f"{status.st_ino}-{status.st_mtime_ns}-{size}"
