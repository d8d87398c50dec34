"""Settings of S3 in the environment and in the files of AWS: endpoint, region, credentials."""

from __future__ import annotations

import os
import urllib.request
from typing import Any
from urllib.error import HTTPError

from cordwood.errors import UnsupportedFormatError

_DEFAULT_REGION = "us-east-1"  # accepted by stores without regions
_REGION_SECONDS = 4.0


def s3_endpoint() -> str | None:
    """Return the endpoint from the environment, in boto3's order; None for Amazon's."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def s3_region() -> str | None:
    """Return the region from the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def s3_settings(bucket: str, profile: str | None, options: dict[str, Any]) -> dict[str, Any]:
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
