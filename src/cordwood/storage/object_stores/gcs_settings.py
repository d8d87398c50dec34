"""Settings of Google Cloud Storage in the environment."""

from __future__ import annotations

import os
from typing import Any


def gcs_endpoint() -> str | None:
    """Return the emulator from the environment; None for Google's own service."""
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        return None
    return (host if "://" in host else f"http://{host}").rstrip("/")


_EMULATOR_TOKEN = {"token": "emulator", "expires_at": None}


def gcs_settings() -> dict[str, Any]:
    """Return the options of Google Cloud Storage, as obstore takes them."""
    endpoint = gcs_endpoint()
    if endpoint is None:
        return {}
    # With skip_signature obstore still asks for a token before it writes.
    return {"base_url": endpoint, "credential_provider": lambda: _EMULATOR_TOKEN}
