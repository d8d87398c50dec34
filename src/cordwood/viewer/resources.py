"""The table of resources, and how a resource is computed from its name."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from cordwood.errors import CordwoodError, FileChangedError
from cordwood.io.progress import Report
from cordwood.viewer.checkpoint_view import checkpoint_view
from cordwood.viewer.diff_view import diff_leaf_view, diff_view
from cordwood.viewer.json_columns import JsonColumns
from cordwood.viewer.leaf_view import leaf_view
from cordwood.viewer.run_view import norms_view, run_view
from cordwood.viewer.sources import Sources
from cordwood.viewer.start_view import start_view
from cordwood.viewer.statistics_view import statistics_view
from cordwood.viewer.verify_view import verify_view

_MAX_KEPT_BYTES = 32 << 20
_READS = ("digests", "sample", "all")
_NUMBERS = ("number", "i", "j")
_MAX_DIGITS = 9


class Resource(NamedTuple):
    """One row of the table of resources.

    Attributes:
        pattern: the name, with the names of the arguments in braces. `{number}`, `{i}` and `{j}`
            are integers, `{read}` is one of digests, sample and all; the others are strings.
        view: returns the value, of types that JSON has; its members may be JsonColumns. It is
            called with the sources, a callback for progress or None, and the arguments by name.
        is_kept: True if the value stays the same while the sources are open.
        reads_data: True if it may read more than indexes; few of these run at the same time.
        lists_leaves: True if its value grows with the number of leaves, and it reads no data; few
            of these run at the same time, too.
    """

    pattern: str
    view: Callable[..., object]
    is_kept: bool = True
    reads_data: bool = False
    lists_leaves: bool = False


RESOURCES: tuple[Resource, ...] = (
    Resource("start", start_view),
    Resource("checkpoint/{source}", checkpoint_view, lists_leaves=True),
    Resource("leaf/{source}/{number}", leaf_view),
    Resource("statistics/{source}/{number}/{read}", statistics_view, reads_data=True),
    Resource("verify/{source}", verify_view, is_kept=False, reads_data=True),
    Resource("diff/{a}/{b}/{read}", diff_view, reads_data=True),
    Resource("diff-leaf/{a}/{b}/{i}/{j}/{read}", diff_leaf_view, reads_data=True),
    Resource("run", run_view, is_kept=False),
    Resource("norms/{source}/{read}", norms_view, reads_data=True),
)


class Resources:
    """The resources of what was opened. Values that stay the same are kept as JSON."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # the last used last
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def answer(self, name: str, report: Report | None = None) -> Any:
        """Return the value of a resource.

        Raises:
            KeyError: there is no resource of this name.
            Exception: whatever its view raises.
        """
        resource, arguments = parse_name(name)
        return resource.view(self.sources, report, **arguments)

    def answer_json(self, name: str, report: Report | None = None) -> bytes:
        """Return the value of a resource as JSON in ASCII; raise as `answer` does."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        try:
            encoded = json_bytes(self.answer(name, report))
        except FileChangedError:
            with self._lock:  # what was kept is of the old file
                self._kept.clear()
                self._kept_bytes = 0
            raise
        if parse_name(name)[0].is_kept and len(encoded) <= _MAX_KEPT_BYTES:
            with self._lock:
                self._kept_bytes += len(encoded) - len(self._kept.pop(name, b""))
                self._kept[name] = encoded
                while self._kept_bytes > _MAX_KEPT_BYTES:
                    _, oldest = self._kept.popitem(last=False)
                    self._kept_bytes -= len(oldest)
        return encoded


def resource_name(*parts: object) -> str:
    """Return the name of a resource from its parts.

    >>> resource_name("leaf", "step/1", 12)
    'leaf/step%2F1/12'
    """
    return "/".join([quote(str(part), safe="", errors="surrogateescape") for part in parts])


def parse_name(name: str) -> tuple[Resource, Mapping[str, object]]:
    """Return the resource that a name means, and the arguments of its view.

    Raises KeyError if there is none.

    >>> parse_name("leaf/a/12")[1]
    {'source': 'a', 'number': 12}
    """
    kind, *parts = name.split("/")
    for resource in RESOURCES:
        head, *fields = resource.pattern.split("/")
        if head == kind and len(fields) == len(parts):
            names = [field.strip("{}") for field in fields]
            with suppress(ValueError):
                return resource, dict(zip(names, map(_parsed, names, parts), strict=True))
    patterns = ", ".join([resource.pattern for resource in RESOURCES])
    raise KeyError(f"there is no resource {name!r:.100}; expected one of {patterns}")


def _parsed(name: str, part: str) -> object:
    """Return an argument from its part of a name. Raises ValueError if it is not of its type."""
    text = unquote(part, errors="surrogateescape")
    if name in _NUMBERS:
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
    elif name != "read" or text in _READS:
        return text
    raise ValueError(text)


def json_bytes(value: object) -> bytes:
    """Return a value as JSON in ASCII; NaN and infinities become strings.

    >>> json_bytes({"mean": float("nan"), "count": 1})
    b'{"mean":"NaN","count":1}'
    """
    if isinstance(value, dict) and any(isinstance(item, JsonColumns) for item in value.values()):
        return b"".join(_parts_of_object(value))
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:  # rare, so the value is searched only then
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _parts_of_object(value: Mapping[str, object]) -> Iterator[bytes]:
    """Yield the JSON of an object, some of whose members are tables."""
    separator = b"{"
    for name, item in value.items():
        yield separator + json_bytes(name) + b":"
        yield from item.parts() if isinstance(item, JsonColumns) else (json_bytes(item),)
        separator = b","
    yield b"}"


def _finite(value: object) -> object:
    """Return a JSON value with NaN and infinities replaced by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value


def error_json(error: Exception) -> dict[str, str]:
    """Return the type and the message of an error for the page."""
    is_key = isinstance(error, KeyError) and not isinstance(error, CordwoodError)
    message = str(error.args[0]) if is_key and error.args else str(error)
    return {"type": type(error).__name__, "message": message}
