"""The errors of huggingface_hub as those of cordwood, each with what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from cordwood.errors import StorageError, UnsupportedFormatError

_LOG_IN = "set HF_TOKEN to a token of an account that may read it, or run `hf auth login`"
_UNAUTHORIZED = (401, 403)
_SERVER_ERROR = 500  # and above


def import_hub(name: str) -> ModuleType:
    """Import huggingface_hub. Raises UnsupportedFormatError if it is not installed."""
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as e:
        raise UnsupportedFormatError(
            f"{name}: hf:// needs huggingface_hub: install it with pip install 'cordwood[hub]'"
        ) from e
    return huggingface_hub


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise errors of huggingface_hub in the block as those of cordwood, with the URL.

    Raises:
        FileNotFoundError: there is no such model, revision or file, or a token is needed to see it.
        StorageError: the model is gated, or the hub does not answer and the cache has no such file.
    """
    errors = import_hub(name).errors
    # The base of all errors of a request: that of httpx, in which version huggingface_hub uses it.
    (transport_error, *_) = errors.HfHubHTTPError.__bases__
    try:
        yield
    except errors.GatedRepoError as e:
        what = f"the model is gated: accept its conditions on its page, and {_LOG_IN}"
        raise StorageError(errno.EACCES, what, name) from e
    except errors.RepositoryNotFoundError as e:
        what = f"the hub shows no such model; if it is private, {_LOG_IN}"
        raise FileNotFoundError(errno.ENOENT, what, name) from e
    except errors.RevisionNotFoundError as e:
        what = (
            "the model has no such revision; expected the name of a branch or tag, or the hash of "
            "a commit, after the @; without one it is the branch main"
        )
        raise FileNotFoundError(errno.ENOENT, what, name) from e
    except errors.RemoteEntryNotFoundError as e:
        raise FileNotFoundError(errno.ENOENT, "the model has no such file", name) from e
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as e:
        raise not_in_cache(name, e) from e
    except errors.HfHubHTTPError as e:
        status = e.response.status_code
        what = f"the hub answered {status}: {e.server_message or 'without a reason'}"
        if status in _UNAUTHORIZED:
            what += f"; {_LOG_IN}"
        code = errno.EACCES if status in _UNAUTHORIZED else errno.EIO
        raise StorageError(code, what, name) from e
    except transport_error as e:
        raise not_in_cache(name, e) from e


def is_unreachable(name: str, error: Exception) -> bool:
    """Return True for an error by which the hub has failed, not answered, or may not be asked."""
    errors = import_hub(name).errors
    if isinstance(error, errors.HfHubHTTPError):
        return bool(error.response.status_code >= _SERVER_ERROR)
    return isinstance(error, (errors.OfflineModeIsEnabled, errors.HfHubHTTPError.__bases__[0]))


def not_in_cache(name: str, error: Exception) -> StorageError:
    """Return the error for what is not in the cache, while the hub cannot be reached."""
    reason = str(error).partition("\n")[0]
    return StorageError(
        errno.ENETUNREACH,
        "it is not in the cache of huggingface_hub, and the hub cannot be reached "
        f"({reason:.300}): load it once with a network and without HF_HUB_OFFLINE, or set HF_HOME "
        "to the cache that has it, or HF_ENDPOINT to a mirror",
        name,
    )
