"""The client of jax's coordination service, which `jax.distributed.initialize` starts."""

from __future__ import annotations

from typing import Any

from cordwood.errors import ProcessError

_CLIENT_CALLS = (
    "blocking_key_value_get_bytes",
    "key_value_delete",
    "key_value_dir_get_bytes",
    "key_value_set_bytes",
)


def coordinator_address() -> str | None:
    """Return the address of the coordination service, "host:port"; None if it is not known."""
    try:
        from jax._src.distributed import global_state

        address = global_state.coordinator_address
    except (ImportError, AttributeError):
        return None
    return address if isinstance(address, str) else None


def coordination_client() -> Any:
    """Return the client of the coordination service that `jax.distributed.initialize` started.

    jax has no public name for it. Its public alternative, the collectives of
    `jax.experimental.multihost_utils`, runs on devices and so cannot run in a background thread.
    So there is no fallback: without the client this raises ProcessError.
    """
    import jax

    try:
        from jax._src.distributed import global_state

        client = global_state.client
    except (ImportError, AttributeError):
        client = None
    missing = [name for name in _CLIENT_CALLS if not hasattr(client, name)]
    if missing:
        raise ProcessError(
            f"jax {jax.__version__} runs {jax.process_count()} processes, but its coordination "
            f"client ({type(client).__name__}) has no {', '.join(missing)}: cordwood needs it to "
            "save from several processes, and was tried with jax 0.7.0, 0.10.2 and 0.12.0.1"
        )
    return client
