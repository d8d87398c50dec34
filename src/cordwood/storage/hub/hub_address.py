"""The model, revision and path that a URL `hf://org/model@revision/path` names."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.locations import Location, Url

# https://huggingface.co/docs/huggingface_hub/guides/hf_file_system: these revisions have slashes.
_KEY = re.compile(r"([^@/]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.+))?")
_OTHER_REPOSITORIES = ("buckets", "datasets", "spaces")


class HubAddress(NamedTuple):
    """A place in a repository of models.

    Attributes:
        repo_id: such as "org/model".
        revision: a branch, a tag or a commit hash.
        path: of a file or folder in it; "" for the repository itself.
    """

    repo_id: str
    revision: str
    path: str


def parse_hub_url(url: Url) -> HubAddress:
    """Return what a URL of the hub names. Without a revision it is the branch main.

    Raises UnsupportedFormatError if it is no model's.
    """
    match = _KEY.fullmatch(url.key)
    if match is None or "@" in url.bucket or url.bucket in _OTHER_REPOSITORIES:
        raise UnsupportedFormatError(
            f"{url}: expected a model of the hub, as in hf://org/model, hf://org/model@revision or "
            "hf://org/model/model.safetensors"
        )
    revision = unquote(match[2]) if match[2] else "main"
    return HubAddress(f"{url.bucket}/{match[1]}", revision, match[3] or "")


def refuse_hub(location: Location) -> None:
    """Raise UnsupportedFormatError for a URL of the hub, where more than reading is asked for."""
    if isinstance(location, Url) and location.is_hub:
        raise hub_is_read_only(location)


def hub_is_read_only(url: Url) -> UnsupportedFormatError:
    """Return the error for a call that would write to the hub, or read a run there."""
    return UnsupportedFormatError(
        f"{url}: hf:// can only be read, by calls such as load, open, convert, diff and verify; "
        "save to a local path, and upload it: "
        "huggingface_hub.upload_folder(repo_id=..., folder_path=...)"
    )
