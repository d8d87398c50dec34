"""The opening of a bucket by obstore, with the options of a program and of the environment.

Each store is opened twice: once for requests, which the client repeats itself and logs, and once
for uploads, whose parts obstore repeats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.azure_settings import azure_settings
from cordwood.storage.object_stores.gcs_settings import gcs_settings
from cordwood.storage.object_stores.s3_settings import s3_settings

STALL_SECONDS = 60.0
CONNECT_SECONDS = 4.0  # twice this, and a pause, are less than 10 s
UPLOAD_RETRIES = 8  # of each part of an upload


class OpenBucket(NamedTuple):
    """A bucket, opened.

    Attributes:
        requests: the obstore store for requests; obstore repeats none.
        uploads: the obstore store for uploads in parts; obstore repeats each part.
        where: the bucket and its endpoint, for messages; equal for all URLs of one bucket.
        stall_seconds: a transfer without an acknowledged byte for so long has failed.
    """

    requests: Any
    uploads: Any
    where: str
    stall_seconds: float


@cache
def _memory_store() -> Any:
    """Return the store of all memory:// URLs of this process."""
    from obstore.store import MemoryStore

    return MemoryStore()


def open_bucket(url: Url, options: Mapping[str, Any]) -> OpenBucket:
    """Open the bucket of a URL with the options of a program; the environment has the others."""
    config = {k: v for k, v in options.items() if k not in ("store", "profile", "stall_seconds")}
    client: Any = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS)}
    stall = options.get("stall_seconds") or _stall_seconds()
    client["timeout"] = timedelta(hours=6)  # of a whole request: what counts is progress
    client["read_timeout"] = timedelta(seconds=stall / 2)
    client.update(config.pop("client_options", {}))
    where = f"{url.scheme}://{url.bucket}"
    if options.get("store") is not None:
        return OpenBucket(options["store"], options["store"], where, stall)
    from obstore import exceptions, store

    if url.scheme == "memory":
        return OpenBucket(_memory_store(), _memory_store(), where, stall)
    refuse_hub(url)
    if url.is_web:
        client["allow_http"] = url.scheme == "http"
        base = f"{url.scheme}://{url.bucket}"
        pages = store.HTTPStore(base, client_options=client, retry_config=_NO_RETRIES)
        return OpenBucket(pages, pages, base, stall)
    if url.scheme == "s3":
        config = {**s3_settings(url.bucket, options.get("profile"), config), **config}
        kind: Any = store.S3Store
    elif url.scheme == "gs":
        config = {**gcs_settings(), **config}
        kind = store.GCSStore
    else:
        config = {**azure_settings(), **config}
        kind = store.AzureStore
    endpoint = config.get("endpoint") or config.get("base_url") or ""
    if endpoint and not str(endpoint).startswith(("http://", "https://")):
        raise UnsupportedFormatError(
            f"{where}: expected an endpoint that begins with https:// or http://, such as "
            f"'http://{str(endpoint).rpartition('://')[2]}', found {endpoint!r}"
        )
    if endpoint and url.scheme == "s3":
        _refuse_bucket_in_endpoint(where, url.bucket, str(endpoint), config)
    if endpoint:
        client.setdefault("allow_http", str(endpoint).startswith("http://"))
        where = f"{where} at {endpoint}"
    try:
        requests, uploads = (
            kind(url.bucket, **config, client_options={**client, **waits}, retry_config=retries)
            for waits, retries in (
                ({}, _NO_RETRIES),
                ({"read_timeout": timedelta(seconds=stall)}, _UPLOAD_RETRIES),
            )
        )
    except (exceptions.BaseError, ValueError, TypeError) as e:
        text = str(e).partition("\n")[0]
        raise UnsupportedFormatError(
            f"{url.scheme}://{url.bucket}: the options of the store are wrong: {text}"
            + next((advice for mark, advice in _ADVICE.items() if mark in text), "")
        ) from e
    return OpenBucket(requests, uploads, where, stall)


_ADVICE = {
    "Account must be": "; set AZURE_STORAGE_ACCOUNT_NAME",
    "Invalid Access Key": "; look at AZURE_STORAGE_ACCOUNT_KEY",
}


def _refuse_bucket_in_endpoint(
    where: str, bucket: str, endpoint: str, config: Mapping[str, Any]
) -> None:
    """Raise UnsupportedFormatError for the address of a bucket in place of that of the store.

    The store would take the bucket's name once more, for the beginning of all keys.
    """
    option = "virtual_hosted_style_request"
    if f"AWS_{option.upper()}" in os.environ or any(name.endswith(option) for name in config):
        return
    parts = urlsplit(endpoint)
    host = parts.netloc.removeprefix(f"{bucket}.")
    path = parts.path.rstrip("/").removesuffix(f"/{bucket}")
    if host == parts.netloc and path == parts.path.rstrip("/"):
        return
    raise UnsupportedFormatError(
        f"{where}: the endpoint {endpoint!r} contains the bucket: expected that of the store, "
        f"'{parts.scheme}://{host}{path}'; or set AWS_{option.upper()} to true if the store wants "
        "the bucket in the name of the host, and to false if the store itself is called so"
    )


_NO_RETRIES: Any = {"max_retries": 0}
_UPLOAD_RETRIES: Any = {
    "max_retries": UPLOAD_RETRIES,
    "backoff": {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=16)},
    "retry_timeout": timedelta(seconds=180),
}


def _stall_seconds() -> float:
    text = os.environ.get("CORDWOOD_STALL_SECONDS") or str(STALL_SECONDS)
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise UnsupportedFormatError(
        f"CORDWOOD_STALL_SECONDS={text!r:.40}: expected a number of seconds above 0"
    )
