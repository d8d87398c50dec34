"""Settings of Azure in the environment."""

from __future__ import annotations

import os
from typing import Any


def azure_endpoint() -> str | None:
    """Return the endpoint from the environment, as obstore reads it; None for Azure's own."""
    return os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT") or None


def azure_settings() -> dict[str, Any]:
    """Return the options of Azure, as obstore takes them."""
    endpoint = azure_endpoint()
    return {} if endpoint is None else {"endpoint": endpoint}
