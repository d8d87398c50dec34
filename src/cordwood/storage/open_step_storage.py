"""The opening of the storage of steps at a location."""

from __future__ import annotations

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.hub.hub_address import refuse_hub
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.step_storage import StepListing, StepStorage
from cordwood.storage.storage_protocol import NamingRules


def open_step_storage(
    root: Location, rules: NamingRules, *, timeout_seconds: float | None = None
) -> StepStorage:
    """Return the storage of the steps below a path or URL.

    Args:
        root: the path or URL.
        rules: the naming rules of their format; its index makes a directory a finished step.
        timeout_seconds: the longest wait for the lock of the root; None: no limit.

    Raises UnsupportedFormatError for the URL of a web server, or of the hub.
    """
    if isinstance(root, LocalPath):
        return LocalStepStorage(root, rules, timeout_seconds=timeout_seconds)
    refuse_hub(root)
    if root.is_web:
        raise UnsupportedFormatError(
            f"{root.address}: a web server lists no steps and can only be read: expected a path, "
            "or a URL of s3://, gs:// or az://; or load one step by its whole URL: "
            f"cordwood.load('{root.address}/100')"
        )
    from cordwood.storage.object_stores.object_step_storage import ObjectStepStorage

    return ObjectStepStorage(root, rules)


def open_step_listing(root: Location, rules: NamingRules) -> StepListing:
    """Return a listing of the steps below a path or URL, to read them.

    Unlike `open_step_storage` this takes the URL of a server of `cordwood serve`, which lists them.

    Raises UnsupportedFormatError for the URL of the hub.
    """
    if isinstance(root, LocalPath) or not root.is_web:
        return open_step_storage(root, rules)
    from cordwood.storage.peers.served_steps import ServedSteps

    return ServedSteps(root, rules)
