"""The requests to the hub: what a model holds, a whole file, the beginning of a file."""

from __future__ import annotations

import os

from cordwood.errors import TruncatedError
from cordwood.storage.directories import file_sizes
from cordwood.storage.hub.hub_address import HubAddress
from cordwood.storage.hub.hub_errors import hub_errors, import_hub, is_unreachable
from cordwood.storage.hub.hub_listing import HubListing


def list_model(address: HubAddress, name: str) -> HubListing:
    """Return the files of a model, by one request. Raises as `hub_errors`; `name` is for them."""
    with hub_errors(name):
        try:
            info = (
                import_hub(name)
                .HfApi()
                .model_info(address.repo_id, revision=address.revision, files_metadata=True)
            )
        except Exception as e:
            if not is_unreachable(name, e):
                raise
            return _list_cache(address, name, e)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    return HubListing(info.sha, {path: size for path, size in sizes.items() if _is_inside(path)})


def fetch_file(address: HubAddress, commit: str, path: str, name: str) -> str:
    """Return the path of a file in the cache, which is fetched if it is not there.

    Raises as `hub_errors`.
    """
    cached = cached_file(address, commit, path, name)
    if cached is not None:
        return cached
    hub = import_hub(name)
    with hub_errors(name):
        # By the name of the revision, so that the cache knows its commit when the hub is away.
        fetched: str = hub.hf_hub_download(address.repo_id, path, revision=address.revision)
        if commit not in fetched.split(os.sep):  # the branch has just moved on
            fetched = hub.hf_hub_download(address.repo_id, path, revision=commit)
    return fetched


def cached_file(address: HubAddress, commit: str, path: str, name: str) -> str | None:
    """Return the path of a file in the cache; None if it is not there. Nothing is requested."""
    hub = import_hub(name)
    cached = hub.try_to_load_from_cache(address.repo_id, path, revision=commit)
    return cached if isinstance(cached, str) else None


def read_beginning(
    address: HubAddress, commit: str, path: str, size_bytes: int, name: str
) -> bytes:
    """Return the first bytes of a file, by one request; nothing goes into the cache.

    Raises TruncatedError if there are fewer, and as `hub_errors`.
    """
    hub = import_hub(name)
    data = bytearray()
    with hub_errors(name):
        url = hub.hf_hub_url(address.repo_id, path, revision=commit)
        headers = {**hub.utils.build_hf_headers(), "Range": f"bytes=0-{size_bytes - 1}"}
        session = hub.utils.get_session()
        with session.stream("GET", url, headers=headers, follow_redirects=True) as response:
            if response.status_code >= 400:
                response.read()
            hub.utils.hf_raise_for_status(response)
            for part in response.iter_bytes():  # of a server without ranges, the whole file
                data += part
                if len(data) >= size_bytes:
                    break
    if len(data) < size_bytes:
        raise TruncatedError(f"{name}: expected {size_bytes} bytes, found {len(data)}")
    return bytes(data[:size_bytes])


def _is_inside(path: str) -> bool:
    """Return whether a path that the hub lists stays in the folder of the model in the cache."""
    return not {"", ".", ".."}.intersection(path.split("/"))


def _list_cache(address: HubAddress, name: str, error: Exception) -> HubListing:
    """Return the files of a model that are in the cache. Raises `error` if there are none."""
    hub = import_hub(name)
    try:
        folder = hub.snapshot_download(
            address.repo_id, revision=address.revision, local_files_only=True
        )
    except hub.errors.LocalEntryNotFoundError as e:  # also if only some of the files are there
        folder = getattr(e, "snapshot_path", None)
        if folder is None:
            raise error from e
    return HubListing(os.path.basename(folder), file_sizes(folder), error)
