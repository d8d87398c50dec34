"""A bucket in memory, served over HTTP on loopback, with failures on command.

`s3_server` and `gcs_server` add what differs: the form of versions, conditions and credentials.
One file, because S3 and the XML interface of GCS are one protocol but for those.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "bucket"
MIN_PART_SIZE = 5 << 20  # of every part but the last, as S3 has it

_CODES = {
    301: "PermanentRedirect",
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "SlowDown",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}

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


def error(status: int, code: str = "", key: str = "") -> Response:
    """Return an error with the document that S3 sends."""
    code = code or _CODES.get(status, "InternalError")
    body = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code>"
        f"<Message>{code}</Message><Resource>{escape(key)}</Resource><RequestId>1</RequestId>"
        "</Error>"
    )
    return Response(status, [body.encode()], {"Content-Type": "application/xml"})


def carry_out(
    bucket: Bucket,
    request: Request,
    refusal_of: Callable[[Request, Stored | None], Response | None],
) -> Response:
    """Return the response to a request; `refusal_of` checks the condition of a write."""
    key, query = request.key, request.query
    if request.method in ("GET", "HEAD"):
        return _get(bucket, request)
    if request.method == "LIST":
        return _list(bucket, query)
    if (refusal := _digest_refusal(bucket, request)) is not None:
        return refusal
    tag = bucket.tag(request.data) if request.method in ("PUT", "PUT_PART") else ""
    with bucket.lock:
        if request.method in ("PUT", "COMPLETE", "DELETE") and bucket.obeys_conditions:
            refusal = refusal_of(request, bucket.objects.get(key))
            if refusal is not None:
                return refusal
        match request.method:
            case "PUT":
                return Response(200, (), _versions(bucket.store(key, (request.data,), tag)))
            case "DELETE":
                gone = bucket.objects.pop(key, None)
                return Response(204) if gone or "x-amz-date" in request.headers else error(404)
            case "DELETE_MANY":
                return _delete_many(bucket, request)
            case "CREATE_UPLOAD":
                upload_id = f"upload-{next(bucket.numbers)}"
                bucket.uploads[upload_id] = Upload(key, {})
                return _xml(
                    "InitiateMultipartUploadResult",
                    [("Bucket", BUCKET), ("Key", key), ("UploadId", upload_id)],
                )
            case "LIST_UPLOADS":
                rows = [
                    ("Upload", [("Key", upload.key), ("UploadId", upload_id)])
                    for upload_id, upload in bucket.uploads.items()
                ]
                return _xml("ListMultipartUploadsResult", rows)
            case "PUT_PART" | "COMPLETE" | "ABORT":
                upload = bucket.uploads.get(query["uploadId"])
                if upload is None or upload.key != key:
                    return error(404, "NoSuchUpload", key)
                if request.method == "PUT_PART":
                    upload.parts[int(query["partNumber"])] = request.data, tag
                    return Response(200, (), {"ETag": tag})
                if request.method == "ABORT":
                    del bucket.uploads[query["uploadId"]]
                    return Response(204)
                return _complete(bucket, request, upload)
    return error(501, key=key)


def _versions(stored: Stored) -> dict[str, str]:
    return {"ETag": stored.tag, "x-goog-generation": stored.generation, "x-amz-request-id": "1"}


def _digest_refusal(bucket: Bucket, request: Request) -> Response | None:
    """Return the refusal of a body that does not agree with the digests in its headers."""
    if not bucket.checks_digests:
        return None
    headers, data = request.headers, request.data
    sha256 = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    if sha256 != "UNSIGNED-PAYLOAD" and sha256 != hashlib.sha256(data).hexdigest():
        return error(400, "XAmzContentSHA256Mismatch", request.key)
    for name, digest in (("content-md5", hashlib.md5), ("x-amz-checksum-sha256", hashlib.sha256)):
        expected = headers.get(name)
        if expected not in (None, base64.b64encode(digest(data).digest()).decode()):
            return error(400, "BadDigest", request.key)
    return None


def _complete(bucket: Bucket, request: Request, upload: Upload) -> Response:
    """Make one object of the parts that the body of a request names."""
    parts = [
        (int(part.findtext("{*}PartNumber") or 0), part.findtext("{*}ETag"))
        for part in ElementTree.fromstring(bytes(request.data)).findall("{*}Part")
    ]
    numbers = [number for number, _ in parts]
    if not parts or numbers != sorted(set(numbers)):
        return error(400, "InvalidPartOrder", request.key)
    for number, tag in parts:
        if number not in upload.parts or upload.parts[number][1].strip('"') != (tag or "").strip(
            '"'
        ):
            return error(400, "InvalidPart", request.key)
    pieces = tuple(upload.parts[number][0] for number in numbers)
    if any(len(piece) < bucket.min_part_size for piece in pieces[:-1]):
        return error(400, "EntityTooSmall", request.key)
    digests = b"".join(bytes.fromhex(upload.parts[number][1].strip('"')) for number in numbers)
    tag = f'"{hashlib.md5(digests).hexdigest()}-{len(pieces)}"'
    del bucket.uploads[request.query["uploadId"]]
    stored = bucket.store(request.key, pieces, tag)
    response = _xml(
        "CompleteMultipartUploadResult", [("Bucket", BUCKET), ("Key", request.key), ("ETag", tag)]
    )
    return response._replace(headers={**response.headers, **_versions(stored)})


def _delete_many(bucket: Bucket, request: Request) -> Response:
    objects = ElementTree.fromstring(bytes(request.data)).findall("{*}Object")
    if len(objects) > 1000:
        return error(400, "MalformedXML")
    keys = [item.findtext("{*}Key") or "" for item in objects]
    for key in keys:
        bucket.objects.pop(key, None)
    return _xml("DeleteResult", [("Deleted", [("Key", key)]) for key in keys])


def _get(bucket: Bucket, request: Request) -> Response:
    with bucket.lock:
        stored = bucket.objects.get(request.key)
    if stored is None:
        return error(404, key=request.key)
    headers = {
        **_versions(stored),
        "Last-Modified": email.utils.formatdate(stored.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }
    match = request.headers.get("if-match")
    if match not in (None, "*") and (match or "").strip('"') != stored.tag.strip('"'):
        return error(412, key=request.key)
    if request.headers.get("if-none-match") in ("*", stored.tag):
        return Response(304, (), headers)
    size = stored.size
    byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range") or "")
    if byte_range is None or byte_range[0] == "bytes=-":
        return Response(200, stored.pieces, headers)
    if byte_range[1]:
        start = int(byte_range[1])
        stop = min(int(byte_range[2]) + 1 if byte_range[2] else size, size)
    else:
        start, stop = max(size - int(byte_range[2]), 0), size
    if start >= size:
        refusal = error(416, key=request.key)
        return refusal._replace(headers={**refusal.headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Response(206, _slice(stored.pieces, start, stop), headers)


def _slice(pieces: Sequence[Data | memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the bytes from start to stop of pieces, without a copy."""
    views, offset = [], 0
    for piece in pieces:
        view = memoryview(piece)[max(start - offset, 0) : max(stop - offset, 0)]
        if view:
            views.append(view)
        offset += len(piece)
    return views


def _list(bucket: Bucket, query: dict[str, str]) -> Response:
    """Return a page of ListObjectsV2; a continuation token is the last key or prefix before it."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    limit = min(int(query.get("max-keys", bucket.page_size)), bucket.page_size)
    rows: list[tuple[str, Any]] = []
    last, truncated, prefixes = "", False, set()
    with bucket.lock:
        items = sorted(item for item in bucket.objects.items() if item[0].startswith(prefix))
    for key, stored in items:
        stop = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if stop < 0 else key[: stop + len(delimiter)]
        if name <= after or name in prefixes:
            continue
        if len(rows) == limit:
            truncated = True
            break
        last = name
        if stop >= 0:
            prefixes.add(name)
            rows.append(("CommonPrefixes", [("Prefix", name)]))
            continue
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
        rows.append(
            (
                "Contents",
                [
                    ("Key", key),
                    ("LastModified", modified),
                    ("ETag", stored.tag),
                    ("Size", str(stored.size)),
                    ("Generation", stored.generation),
                ],
            )
        )
    head = [("Name", BUCKET), ("Prefix", prefix), ("KeyCount", str(len(rows)))]
    head += [("IsTruncated", str(truncated).lower())]
    head += [("NextContinuationToken", last)] if truncated else []
    return _xml("ListBucketResult", [*head, *rows])


def _xml(name: str, rows: Sequence[tuple[str, Any]]) -> Response:
    """Return a document; a row holds text or rows."""

    def text(rows: Sequence[tuple[str, Any]]) -> str:
        return "".join(
            f"<{name}>{escape(value) if isinstance(value, str) else text(value)}</{name}>"
            for name, value in rows
        )

    body = f"<?xml version='1.0' encoding='UTF-8'?><{name}>{text(rows)}</{name}>"
    return Response(200, [body.encode()], {"Content-Type": "application/xml"})


class ObjectHandler(BaseHTTPRequestHandler):
    """A connection of a client; a subclass says what a provider accepts."""

    bucket: Bucket  # of the class
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Not to stderr."""

    def credentials_refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request with wrong or no credentials."""
        raise NotImplementedError

    def condition_refusal(self, request: Request, stored: Stored | None) -> Response | None:
        """Return the refusal of a write whose condition on the object does not hold."""
        raise NotImplementedError

    def handle_request(self) -> None:
        """Read a request, carry it out and answer it, as the hook of the bucket says."""
        url = urlsplit(self.path)
        name, _, key = unquote(url.path).lstrip("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {key.lower(): value for key, value in self.headers.items()}
        data = self._read(int(headers.get("content-length", 0)))
        request = Request(_method(self.command, key, query), key, data, query, headers)
        if request.method == "LIST":
            request = request._replace(key=query.get("prefix", ""))
        bucket = self.bucket
        if bucket.needs_credentials and (refusal := self.credentials_refusal(request)):
            return self._send(refusal)
        if name != BUCKET:
            return self._send(error(404, "NoSuchBucket", name))
        try:
            answer = bucket.begin(request) or Answer(None)
            if isinstance(answer.delay, threading.Event):
                answer.delay.wait()
            else:
                time.sleep(answer.delay)
            response = Response(0)
            for _ in range(max(answer.takes_effect, answer.status is None)):
                response = carry_out(bucket, request, self.condition_refusal)
            if answer.status == 0:
                self.close_connection = True
                return None
            if answer.status is not None:
                response = error(answer.status, key=key)
                if answer.body or answer.status < 300:
                    response = Response(answer.status, [answer.body])
            return self._send(response, cut=answer.cut)
        finally:
            bucket.end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def _read(self, size: int) -> Data:
        """Read a body straight from the socket into its own memory."""
        if size <= 1 << 16:
            return self.rfile.read(size)
        data = bytearray(size)
        view = memoryview(data)
        offset = self.rfile.readinto1(view)
        while offset < size:
            count = self.connection.recv_into(view[offset:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionResetError
            offset += count
        return data

    def _send(self, response: Response, *, cut: bool = False) -> None:
        size = sum(map(len, response.pieces))
        self.send_response_only(response.status)
        for name, value in {**response.headers, "Content-Length": str(size)}.items():
            if response.status not in (204, 304) or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        pieces = response.pieces
        if cut:
            pieces = _slice(response.pieces, 0, size // 2)
            self.close_connection = True
        for piece in pieces:
            self.wfile.write(piece)


def _method(command: str, key: str, query: dict[str, str]) -> str:
    """Return the name of a request."""
    if command == "GET" and not key:
        return "LIST_UPLOADS" if "uploads" in query else "LIST"
    if "uploadId" in query:
        return {"PUT": "PUT_PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(command, command)
    if command == "POST":
        return "DELETE_MANY" if "delete" in query else "CREATE_UPLOAD"
    return command


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[ObjectHandler], port: int) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Pass over a client that has gone."""


@contextmanager
def serve(handler: type[ObjectHandler], bucket: Bucket, port: int = 0) -> Iterator[str]:
    """Serve a bucket until the block ends, and yield the URL of the server."""
    one_bucket = type(handler.__name__, (handler,), {"bucket": bucket})
    server = _Server(one_bucket, port)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in list(server.connections):
            with suppress(OSError):  # its client has gone
                connection.shutdown(socket.SHUT_RDWR)
