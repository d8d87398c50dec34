"""Options of object stores that a program sets: endpoints, credentials, timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from cordwood.storage.locations import LocalPath, Url, parse_location
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.open_bucket import STALL_SECONDS, open_bucket


class StorageOptions:
    """Options of a URL, in force until `close`, or until the end of a `with` block."""

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        self._url = url
        self._before = BUCKETS.set_options(url, options)

    def close(self) -> None:
        """Restore the options that were in force before."""
        BUCKETS.set_options(self._url, self._before)

    def __enter__(self) -> StorageOptions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def storage_options(
    url: str,
    *,
    store: Any = None,
    profile: str | None = None,
    stall_seconds: float = STALL_SECONDS,
    client_options: dict[str, Any] | None = None,
    **config: Any,
) -> StorageOptions:
    """Set the options of an object store for this process, in place of the environment's.

    They hold for every later call with a URL of that bucket: saves, loads, managers, commands of
    this process. Saves that run already keep the options they began with.

    >>> import cordwood
    >>> with cordwood.storage_options("s3://bucket", endpoint="http://localhost:9000"):
    ...     pass  # cordwood.load("s3://bucket/run/100")

    Args:
        url: the bucket, such as "s3://bucket", "gs://bucket" or "az://container".
        store: an open store of obstore, which is used as it is; its options, retries and timeouts
            are its own. The key of a URL is looked up in it.
        profile: a profile of ~/.aws, for s3://; needs boto3.
        stall_seconds: a transfer without an acknowledged byte for so long fails. A request waits
            half of it, and is repeated once. A link must carry two parts of 8 MiB in that time.
        client_options: as obstore takes them: `proxy_url`, `root_certificate`, ...
        **config: as obstore takes them: for s3:// `endpoint`, `region`, `access_key_id`,
            `secret_access_key`, `session_token`, `virtual_hosted_style_request`,
            `skip_signature`, ...; for gs:// `service_account`, ...; for az:// `account_name`,
            `account_key`, ...

    Returns:
        An object whose `close`, or whose `with` block, restores the options before.

    Raises:
        TypeError: `url` is no URL of an object store; `store` is no store of obstore, or comes
            with other options.
        ValueError: `stall_seconds` is not above 0.
        UnsupportedFormatError: the store does not know an option.
    """
    location = parse_location(url)
    if isinstance(location, LocalPath) or not location.bucket:
        raise TypeError(f"url={url!r:.80}: expected a bucket, such as 's3://bucket'")
    if location.key:
        raise TypeError(
            f"url={url!r:.80}: options belong to a whole bucket; pass "
            f"{Url(location.scheme, location.bucket, '').address:.80}"
        )
    if not isinstance(stall_seconds, int | float):
        raise TypeError(f"stall_seconds={stall_seconds!r:.40}: expected a number of seconds")
    if not stall_seconds > 0:
        raise ValueError(f"stall_seconds={stall_seconds!r}: expected seconds above 0")
    if store is not None and (config or profile or client_options):
        raise TypeError("store: it has its own options; expected no others beside it")
    if store is not None and not _is_obstore(store):
        raise TypeError(
            f"store={store!r:.80}: expected a store of obstore, such as obstore.store.S3Store; "
            "pass an address as endpoint="
        )
    options = dict(
        config,
        store=store,
        profile=profile,
        stall_seconds=stall_seconds,
        client_options=client_options or {},
    )
    if store is None:
        open_bucket(location, options)  # says now what it does not know
    return StorageOptions(location, options)


def _is_obstore(store: object) -> bool:
    from obstore import store as stores

    kinds = (stores.S3Store, stores.GCSStore, stores.AzureStore, stores.HTTPStore)
    return isinstance(store, (*kinds, stores.MemoryStore, stores.LocalStore))
