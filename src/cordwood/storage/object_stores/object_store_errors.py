"""Failures of requests to object stores: what they mean, and what to do about them."""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

from cordwood.errors import StorageError

_MESSAGE_LENGTH = 300


class RequestFailure(NamedTuple):
    """The failure of a request."""

    text: str
    status: int = 0  # of the answer; 0: there was none
    timed_out: bool = False

    @property
    def is_temporary(self) -> bool:
        """True if the same request may succeed later."""
        if self.status:
            return self.status in (408, 425, 429) or (self.status >= 500 and self.status != 501)
        if any(mark in self.text for mark in _PERMANENT_MARKS):
            return False
        return self.timed_out or any(mark in self.text for mark in _CONNECTION_MARKS)


_CONNECTION_MARKS = ("HTTP error", "error sending request", "connection", "error decoding response")
_PERMANENT_MARKS = (  # of a connection that fails for a wrong option or address
    "builder error",
    "certificate",
    "InvalidContentType",
    "CorruptMessage",
    "URL scheme is not allowed",
)
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_NO_RANGES = "this server does not answer with byte ranges, which loads need"
_NO_GOOGLE_CREDENTIALS = (
    "there are no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth "
    "application-default login"
)
_MISSING_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_TAG = "ETag Header missing"  # every store tells the tag of what it has stored
_WEB_PAGE = ("<!DOCTYPE html", "<!doctype html", "<html", "<HTML")
NO_STORE = (
    "the endpoint answers with a web page: it is not the address of an object store (the console "
    "of a store has another port), or a proxy answers for it; look at AWS_ENDPOINT_URL, "
    "STORAGE_EMULATOR_HOST or AZURE_STORAGE_ENDPOINT"
)
_HINTS = {  # advice for an error, by a part of its text
    "RequestTimeTooSkewed": "set the clock of this machine",
    **dict.fromkeys(_MISSING_BUCKET, "create the bucket, or mend its name or the endpoint"),
    **dict.fromkeys(_WEB_PAGE, NO_STORE),
    "InvalidAccessKeyId": "the endpoint does not know this AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "look at AWS_SECRET_ACCESS_KEY",
    "Server failed to authenticate": (
        "look at AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and at the clock of "
        "this machine"
    ),
    "<Code>ResourceNotFound": (
        "look at the endpoint, which ends in the name of the account where it has no host of its "
        "own: http://127.0.0.1:10000/devstoreaccount1"
    ),
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION",
    "<Code>AccessDenied": "these credentials lack the permission, or the bucket is not theirs",
    "computeMetadata": _NO_GOOGLE_CREDENTIALS,
    "metadata.google": _NO_GOOGLE_CREDENTIALS,
    "metadata/identity": "there are no credentials: set AZURE_STORAGE_ACCOUNT_KEY",
    "169.254.169.254": (
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE (with boto3 installed)"
    ),
    "301 Moved": "the bucket is in another region: set AWS_REGION",
    "dns error": "look at the name of the host, and the network",
    "Connection refused": "nothing listens at that address: look at the endpoint",
    "certificate": "the certificate of the store is not trusted: client_options root_certificate",
    "builder error": 'allow http:// by client_options={"allow_http": True} of the store',
    "non-partial response": _NO_RANGES,
    "Range request not supported": _NO_RANGES,
    "InvalidContentType": "the endpoint speaks http://, not https://",
    "CorruptMessage": "the endpoint speaks http://, not https://",
    "URL scheme is not allowed": "use an endpoint that begins with https://",
}
_NO_ANSWER_HINT = (
    "look at the bucket's name, the network, and what AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST or "
    "AZURE_STORAGE_ENDPOINT says"
)
_REFUSED_HINT = (
    "if the server asks for a token, set it by cordwood.storage_options(URL, "
    'client_options={"default_headers": {"authorization": "Bearer TOKEN"}})'
)


def failure_of(error: BaseException) -> RequestFailure:
    """Return what an exception of obstore says of the failure of a request."""
    text = str(error)
    status = _STATUS.search(text)
    timed_out = isinstance(error, TimeoutError) or "TimedOut" in text or "Timeout" in text
    number = int(status[1]) if status else 0
    if "<Code>RequestTimeout</Code>" in text:  # S3 says 400
        number = 408
    return RequestFailure(text, number, timed_out)


def is_of_obstore(error: Exception) -> bool:
    """Return True for an error that came from obstore."""
    if isinstance(error, FileNotFoundError | TimeoutError | ValueError):
        return True
    return type(error).__module__.startswith("obstore")


def is_temporary(error: OSError) -> bool:
    """Return True for an error of `request_error` after which the same request may succeed."""
    cause = error.__cause__
    return isinstance(error, StorageError) and cause is not None and failure_of(cause).is_temporary


def is_missing_bucket(error: BaseException) -> bool:
    """Return True for a request that failed because there is no such bucket."""
    return any(code in str(error) for code in _MISSING_BUCKET)


def request_error(error: Exception, where: str, doing: str) -> OSError:
    """Return the exception of ours for one of obstore."""
    text = str(error)
    if _NO_TAG in text:
        return StorageError(errno.EIO, NO_STORE, where)
    failure = failure_of(error)
    hint = next((hint for mark, hint in _HINTS.items() if mark in text), "")
    if not hint and not failure.status:
        hint = _NO_ANSWER_HINT
    if not hint and failure.status in (401, 403) and where.startswith(("http://", "https://")):
        hint = _REFUSED_HINT
    message = text.partition("\n\nDebug source")[0].replace("\n", " ")
    code = re.search(r"<Code>([^<]+)</Code>", text)
    if failure.status and code:  # the text names the object twice before it says this
        explanation = re.search(r"<Message>([^<\n]+)", text)
        status = re.search(r"\d{3} [A-Za-z ]*[A-Za-z]", message[message.find("status code: ") :])
        message = f"status code: {status[0] if status else failure.status}, {code[1]}"
        message += f": {explanation[1]}" if explanation else ""
    cause = re.search(r'message: "([^"]+)"|error: "([^"]+)"', text)
    if len(message) > _MESSAGE_LENGTH:
        message = f"{message[:_MESSAGE_LENGTH]} ..."
    if failure.timed_out:
        message += " (timed out)"
    elif not failure.status and cause:
        message += f" ({cause[1] or cause[2]})"
    message += f"; {hint}" if hint else ""
    kind = type(error).__name__
    if failure.status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return PermissionError(errno.EACCES, f"the store refused while {doing}: {message}", where)
    if "169.254.169.254" in text or "metadata.google" in text:
        return PermissionError(
            errno.EACCES, f"the store cannot be asked while {doing}: {message}", where
        )
    if isinstance(error, FileNotFoundError) or is_missing_bucket(error):
        return FileNotFoundError(errno.ENOENT, f"not found while {doing}: {message}", where)
    return StorageError(errno.EIO, f"the store failed while {doing}: {message}", where)


def is_web_page(data: bytes | None) -> bool:
    """Return True for bytes that no object store answers with."""
    return (data or b"").lstrip().startswith(tuple(map(str.encode, _WEB_PAGE)))
