"""Options of object stores: endpoints, credentials, timeouts; from the environment or a program.

Only this module and `object_store_client` know obstore. Each store is opened twice: once for
requests, which the client repeats itself and logs, and once for uploads, whose parts obstore
repeats.

One file, because what a program, the environment and a profile say decides together which store is
opened.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.locations import LocalPath, Url, parse_location

STALL_SECONDS = 60.0
CONNECT_SECONDS = 4.0  # twice this, and a pause, are less than 10 s
UPLOAD_RETRIES = 8  # of each part of an upload
_DEFAULT_REGION = "us-east-1"  # accepted by stores without regions
_REGION_SECONDS = 4.0


class OpenStore(NamedTuple):
    """A bucket, opened.

    Attributes:
        requests: the obstore store for requests; obstore repeats none.
        uploads: the obstore store for uploads in parts; obstore repeats each part.
        where: the bucket and its endpoint, for messages; equal for all URLs of one bucket.
        prefix: what all keys begin with; "" or with a slash at its end.
        stall_seconds: a transfer without an acknowledged byte for so long has failed.
    """

    requests: Any
    uploads: Any
    where: str
    prefix: str
    stall_seconds: float


class StorageOptions:
    """Options of a URL, in force until `close`, or until the end of a `with` block."""

    def __init__(self, url: Url, options: dict[str, Any]) -> None:
        self._key = (url.scheme, url.bucket)
        self._before = _options.get(self._key)
        _options[self._key] = options
        _opened.pop(self._key, None)

    def close(self) -> None:
        """Restore the options that were in force before."""
        _opened.pop(self._key, None)
        if self._before is None:
            _options.pop(self._key, None)
        else:
            _options[self._key] = self._before

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
        _open_bucket(location, options)  # says now what it does not know
    return StorageOptions(location, options)


def _is_obstore(store: object) -> bool:
    from obstore import store as stores

    kinds = (stores.S3Store, stores.GCSStore, stores.AzureStore, stores.HTTPStore)
    return isinstance(store, (*kinds, stores.MemoryStore, stores.LocalStore))


_options: dict[tuple[str, str], dict[str, Any]] = {}  # by scheme and bucket
_opened: dict[tuple[str, str], OpenStore] = {}
_memory: list[Any] = []  # the store of all memory:// URLs of this process


def open_store(url: Url) -> OpenStore:
    """Return the store of a URL; sends no request but that for the region of a bucket at Amazon.

    Raises UnsupportedFormatError for options that it does not know, or a profile without boto3.
    """
    key = (url.scheme, url.bucket)
    environment = _environment()
    opened = _opened.get(key)
    if opened is None or _opened_with.get(key) != environment:
        opened = _open_bucket(url, _options.get(key, {}))
        _opened[key], _opened_with[key] = opened, environment
    path = url.key.rstrip("/")
    return opened._replace(prefix=f"{path}/" if path else "")


_opened_with: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_EMULATOR_HOST", "CORDWOOD_STALL_SECONDS")


def _environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that matter: a store is opened anew once they have changed."""
    return tuple([(k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES)])


def _open_bucket(url: Url, options: dict[str, Any]) -> OpenStore:
    config = {k: v for k, v in options.items() if k not in ("store", "profile", "stall_seconds")}
    client: Any = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS)}
    stall = options.get("stall_seconds") or _stall_seconds()
    client["timeout"] = timedelta(hours=6)  # of a whole request: what counts is progress
    client["read_timeout"] = timedelta(seconds=stall / 2)
    client.update(config.pop("client_options", {}))
    where = f"{url.scheme}://{url.bucket}"
    if options.get("store") is not None:
        return OpenStore(options["store"], options["store"], where, "", stall)
    from obstore import exceptions, store

    if url.scheme == "memory":
        if not _memory:
            _memory.append(store.MemoryStore())
        return OpenStore(_memory[0], _memory[0], where, "", stall)
    if url.is_web:
        client["allow_http"] = url.scheme == "http"
        base = f"{url.scheme}://{url.bucket}"
        pages = store.HTTPStore(base, client_options=client, retry_config=_NO_RETRIES)
        return OpenStore(pages, pages, base, "", stall)
    if url.scheme == "s3":
        config = {**_s3_config(url.bucket, options.get("profile"), config), **config}
        kind: Any = store.S3Store
    elif url.scheme == "gs":
        config = {**_gcs_config(), **config}
        kind = store.GCSStore
    else:
        config = {**_azure_config(), **config}
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
    return OpenStore(requests, uploads, where, "", stall)


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


def azure_endpoint() -> str | None:
    """Return the endpoint from the environment, as obstore reads it; None for Azure's own."""
    return os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT") or None


def _s3_config(bucket: str, profile: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the environment and the profile say of S3, where the program says nothing."""
    config: dict[str, Any] = {}
    region = s3_region()
    has_keys = os.environ.get("AWS_ACCESS_KEY_ID") or "access_key_id" in options
    anonymous = options.get("skip_signature") or "credential_provider" in options
    profile = profile or (None if has_keys else os.environ.get("AWS_PROFILE"))
    profile_endpoint = None
    if profile or (not (has_keys or anonymous) and _has_aws_files()):
        provider, profile_endpoint = _read_profile(profile, bucket)
        config["credential_provider"] = provider
        region = region or provider.config.get("region")
    endpoint = options.get("endpoint") or s3_endpoint() or profile_endpoint
    if endpoint:
        config["endpoint"] = endpoint
    elif options.get("region") is None and region is None:
        region = _amazon_region(bucket)
    config["region"] = region or _DEFAULT_REGION
    if not endpoint and os.environ.keys() & {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}:
        # The environment says to ignore them; obstore would not.
        config["endpoint"] = f"https://s3.{config['region']}.amazonaws.com"
    return config


def _has_aws_files() -> bool:
    paths = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    return any(os.path.exists(os.path.expanduser(path)) for path in paths)


def _read_profile(profile: str | None, bucket: str) -> tuple[Any, str | None]:
    """Return the credential provider of a profile of ~/.aws, and its endpoint for S3, or None."""
    what = f"the profile {profile!r}" if profile else "the default profile of ~/.aws"
    try:
        from boto3.session import Session
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session as Configuration
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as e:
        raise UnsupportedFormatError(
            f"s3://{bucket}: the credentials are in {what}, which boto3 reads: pip install boto3 "
            "(it is in the extra s3, cordwood[s3]), or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        ) from e
    try:
        configuration = Configuration(profile=profile)
        provider = Boto3CredentialProvider(Session(botocore_session=configuration))
        return provider, _profile_endpoint(configuration)
    except (BotoCoreError, ValueError) as e:
        raise UnsupportedFormatError(
            f"s3://{bucket}: expected credentials in {what}: {e}; set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from e


def _profile_endpoint(configuration: Any) -> str | None:
    """Return the endpoint of a profile, in boto3's order: that of its `services`, then its own."""
    profile = configuration.get_scoped_config()
    ignores = (
        os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"),
        profile.get("ignore_configured_endpoint_urls"),
    )
    if any((text or "").lower() == "true" for text in ignores):
        return None
    services = configuration.full_config.get("services", {}).get(profile.get("services"), {})
    endpoint = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    return None if endpoint is None else str(endpoint)


def _amazon_region(bucket: str) -> str | None:
    """Return the region of a bucket at Amazon, by one unsigned request; None if unknown."""
    request = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    headers = None
    try:
        with urllib.request.urlopen(request, timeout=_REGION_SECONDS) as answer:  # noqa: S310
            headers = answer.headers
    except HTTPError as e:  # also of a bucket that only its owner may read
        headers = e.headers
    except OSError:
        return None
    return headers.get("x-amz-bucket-region")


_EMULATOR_TOKEN = {"token": "emulator", "expires_at": None}


def _gcs_config() -> dict[str, Any]:
    endpoint = gcs_endpoint()
    if endpoint is None:
        return {}
    # With skip_signature obstore still asks for a token before it writes.
    return {"base_url": endpoint, "credential_provider": lambda: _EMULATOR_TOKEN}


def _azure_config() -> dict[str, Any]:
    endpoint = azure_endpoint()
    return {} if endpoint is None else {"endpoint": endpoint}
