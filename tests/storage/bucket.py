"""A bucket in memory, with failures on command."""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

BUCKET = "bucket"
MIN_PART_SIZE = 5 << 20  # of every part but the last, as S3 has it

Data = bytes | bytearray


class Request(NamedTuple):
    """A request of a client.

    Attributes:
        method: GET, HEAD, PUT, DELETE, LIST, CREATE_UPLOAD, PUT_PART, COMPLETE, ABORT,
            LIST_UPLOADS or DELETE_MANY.
        key: the object; of LIST: the prefix.
        headers: by names in lower case.
    """

    method: str
    key: str
    data: Data
    query: dict[str, str]
    headers: dict[str, str]


class Response(NamedTuple):
    """A response of the server; the pieces are sent one after the other."""

    status: int
    pieces: Sequence[Data | memoryview] = ()
    headers: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    """The answer of a hook to a request.

    Attributes:
        status: the answer; 0: none, the connection is closed; None: the usual answer.
        takes_effect: how often the request is carried out before it is answered; for a usual
            answer at least once.
        body: of the answer; empty: S3's error document for the status.
        delay: seconds, or an event that is waited for, before anything happens.
        cut: True: the second half of the body is not sent, and the connection is closed.
    """

    status: int | None = 0
    takes_effect: int = 0
    body: bytes = b""
    delay: float | threading.Event = 0
    cut: bool = False


class Stored(NamedTuple):
    """An object of a bucket; one piece for each part of a multipart upload."""

    pieces: tuple[Data, ...]
    tag: str  # the ETag, with its quotes
    generation: str
    modified: float

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class Upload(NamedTuple):
    """A multipart upload that is neither complete nor aborted; data and ETag by part number."""

    key: str
    parts: dict[int, tuple[Data, str]]


class Bucket:
    """A bucket, its requests so far, and what is to go wrong with them.

    Attributes:
        hook: asked about each request before it is carried out, on a thread of its own; it may
            wait. None: the request is carried out as usual.
        obeys_conditions: False: conditional writes are carried out unconditionally.
        takes_tags: the form of an ETag in If-Match: "any", "quoted" or "bare".
        page_size: the most entries in an answer to a list request.
        checks_digests: False: ETags are numbers and digests in headers are not checked, for speed.
        records: False: requests are not kept in `requests`.
        age_seconds: how long ago the server says that an object was written.
    """

    def __init__(self, *, checks_digests: bool = True, records: bool = True) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[Request] = []
        self.hook: Callable[[Request], Answer | None] = lambda _: None
        self.obeys_conditions = True
        self.takes_tags = "any"
        self.page_size = 1000
        self.min_part_size = MIN_PART_SIZE
        self.checks_digests = checks_digests
        self.records = records
        self.needs_credentials = True
        self.age_seconds = 0.0
        self.most_at_once = 0
        self._at_once = 0
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)

    def names(self, folder: str) -> list[str]:
        """Return the names below a key, sorted."""
        head = f"{folder}/"
        return sorted(key.removeprefix(head) for key in self.objects if key.startswith(head))

    def count(self, method: str, pattern: str = "") -> int:
        """Return the number of requests so far of a method, for keys that hold a pattern."""
        return sum(
            request.method == method and re.search(pattern, request.key) is not None
            for request in self.requests
        )

    def put(self, key: str, data: bytes) -> None:
        """Put an object without a request."""
        with self.lock:
            self.store(key, (data,), self.tag(data))

    def tag(self, data: Data) -> str:
        digest = (
            hashlib.md5(data).hexdigest() if self.checks_digests else f"{next(self.numbers):032x}"
        )
        return f'"{digest}"'

    def store(self, key: str, pieces: tuple[Data, ...], tag: str) -> Stored:
        written = time.time() - self.age_seconds
        stored = Stored(pieces, tag, str(next(self.numbers)), written)
        self.objects[key] = stored
        return stored

    def begin(self, request: Request) -> Answer | None:
        with self.lock:
            if self.records:
                self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        return self.hook(request)

    def end(self) -> None:
        with self.lock:
            self._at_once -= 1
