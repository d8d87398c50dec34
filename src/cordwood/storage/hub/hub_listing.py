"""The files of a model on the hub, as one request lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubListing:
    """The files of a model at one commit.

    Attributes:
        commit: the hash of the commit that the revision is.
        sizes: the sizes of the files by their paths; where the hub cannot be reached, of those
            that are in the cache.
        error: by which the hub was not reached; None if it was.
    """

    commit: str
    sizes: Mapping[str, int]
    error: Exception | None = None
