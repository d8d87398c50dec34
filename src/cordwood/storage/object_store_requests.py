"""Requests to an object store through TensorStore: endpoints, retries and log messages.

The endpoint comes from the environment: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for s3://, and
STORAGE_EMULATOR_HOST for gs://. TensorStore retries failed requests; retries, and requests without
an answer for long, are logged. A store that has never answered is given up after the second
failure.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any

from cordwood.processes.coordination import WaitLogger
from cordwood.storage.urls import Url

_log = logging.getLogger("cordwood")

# About two minutes; the default of TensorStore, 32 retries, takes a quarter of an hour.
_RETRIES = {"max_retries": 8, "initial_delay": "1s", "max_delay": "32s"}
_FIRST_RETRIES = {"max_retries": 1, "initial_delay": "1s", "max_delay": "1s"}
_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_REPORTS = 60.0
_BUSY = re.compile(r"http_response_code='(5\d\d|429)'")  # an answer: the store exists
_ANSWERED = re.compile(r"http_response_code='|OUT_OF_RANGE")
_SKEWED = "TimeTooSkewed"
_DEFAULT_REGION = "us-east-1"  # accepted by stores without regions


class Store:
    """A key-value store of TensorStore, opened twice: with all retries, and with one."""

    def __init__(self, spec: dict[str, Any], where: str) -> None:
        import tensorstore

        self.where = where  # the bucket and the endpoint
        self.patient = tensorstore.KvStore.open(spec, context=_context()).result()
        self._quick = None
        if spec["driver"] in ("gcs", "s3"):
            self._quick = tensorstore.KvStore.open(spec, context=_first_context()).result()

    @property
    def quick(self) -> Any:
        """The store with one retry; None once the store has answered."""
        return None if self.where in _answered else self._quick


_answered: set[str] = set()  # the stores that have answered in this process


class Request:
    """A request in flight.

    Args:
        store: the store.
        name: the name of the object, for the log.
        start: starts the request, given a key-value store of TensorStore; returns a future.
        repeatable: True if it may be started again: it holds no data, and changes nothing.
    """

    def __init__(
        self, store: Store, name: str, start: Callable[[Any], Any], *, repeatable: bool = False
    ) -> None:
        self._store = store
        self._name = name
        quick = store.quick if repeatable else None
        self._again = None if quick is None else start
        self._future = start(store.patient if quick is None else quick)

    def result(self) -> Any:
        """Wait for the answer. Raises ValueError, as TensorStore does."""
        try:
            result = self._wait()
        except NotImplementedError as e:  # TensorStore raises this for a 501
            raise ValueError(f"UNIMPLEMENTED: {e}") from e
        except ValueError as e:
            if self._again is None or not _BUSY.search(str(e)):
                if _ANSWERED.search(str(e)) and _SKEWED not in str(e):
                    _answered.add(self._store.where)
                raise
            _answered.add(self._store.where)
            _log.warning("%s: %s; requests are tried again for about two minutes", self._name, e)
            self._future, self._again = self._again(self._store.patient), None
            return self.result()
        _answered.add(self._store.where)
        return result

    def _wait(self) -> Any:
        waiting = WaitLogger(f"an answer of the store about {self._name}")
        try:
            while True:
                try:
                    return self._future.result(timeout=_POLL_SECONDS)
                except TimeoutError:
                    waiting.tick()
                    _report_retries(self._name)
        finally:
            waiting.end()
            _report_retries(self._name)


class _Reported:
    """The number of retries that have been logged."""

    count = 0
    next_seconds = 0.0  # the monotonic time of the next permitted message


def _report_retries(name: str) -> None:
    """Log that TensorStore retries requests, at most once a minute."""
    count = _count_retries()
    if count <= _Reported.count:
        return
    _Reported.count = count
    if time.monotonic() >= _Reported.next_seconds:
        _Reported.next_seconds = time.monotonic() + _SECONDS_BETWEEN_REPORTS
        _log.warning(
            "%s: the store cannot be reached, or answers that it cannot do it now; requests are "
            "tried again, for up to two minutes where it has answered before",
            name,
        )


def _count_retries() -> int:
    import tensorstore

    metrics = [
        metric
        for store in ("s3", "gcs")
        for metric in tensorstore.experimental_collect_matching_metrics(
            f"/tensorstore/kvstore/{store}/retries"
        )
    ]
    return sum(value["value"] for metric in metrics for value in metric["values"])


def open_store(url: Url) -> Store:
    """Open the store of a URL, without a request."""
    driver = {"gs": "gcs"}.get(url.scheme, url.scheme)
    key = url.key.rstrip("/")
    spec: dict[str, Any] = {"driver": driver, "path": f"{key}/" if key or not url.bucket else ""}
    endpoint = ""
    if url.bucket:
        spec["bucket"] = url.bucket
    if url.scheme == "s3":
        endpoint = s3_endpoint() or ""
        # Without this TensorStore checks the condition itself by a read before the write.
        spec["use_conditional_write"] = True
        if endpoint:
            spec.update(endpoint=endpoint, aws_region=s3_region() or _DEFAULT_REGION)
    elif url.scheme == "gs":
        endpoint = gcs_endpoint() or ""
        if endpoint:
            # TensorStore has no option for it, and reads this variable once per process.
            os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", endpoint)
    return Store(spec, f"{url.scheme}://{url.bucket} at {endpoint}")


def s3_endpoint() -> str | None:
    """Return the endpoint from the environment, in boto3's order; None for Amazon's."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def s3_region() -> str | None:
    """Return the region from the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def gcs_endpoint() -> str | None:
    """Return the emulator from the environment; None for Google's own service."""
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        return None
    return (host if "://" in host else f"http://{host}").rstrip("/")


@functools.cache
def _context() -> Any:
    """Return the context of the process, which holds the contents of memory:// stores."""
    return _new_context(_RETRIES)


@functools.cache
def _first_context() -> Any:
    return _new_context(_FIRST_RETRIES)


def _new_context(retries: dict[str, Any]) -> Any:
    import tensorstore

    spec: dict[str, Any] = {"gcs_request_retries": retries, "s3_request_retries": retries}
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        # These have priority anyway; the default would also look for profiles, and warn of none.
        spec["aws_credentials"] = {"type": "environment"}
    return tensorstore.Context(spec)
