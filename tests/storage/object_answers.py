"""The answers of an object store: S3 and the XML interface of GCS are one protocol."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.storage.bucket import BUCKET, Bucket, Data, Request, Response, Stored, Upload

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
    return Response(206, slice_of(stored.pieces, start, stop), headers)


def slice_of(pieces: Sequence[Data | memoryview], start: int, stop: int) -> list[memoryview]:
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
