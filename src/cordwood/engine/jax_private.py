"""The only file that uses private names of jax, each with a public fallback; tried: jax 0.10.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["put_on_device", "set_weak_type"]


def put_on_device(
    arrays: Sequence[np.ndarray[Any, Any]],
    weak_types: Sequence[bool],
    *,
    device: Any | None,
) -> list[Any]:
    """jax.Arrays of host arrays, aliasing their memory on CPU.

    On `device`, committed to it; or, if that is None, on the default device, uncommitted.
    The fallback, `jax.device_put` of each, takes about twenty times as long for small leaves.
    """
    import jax

    committed = device is not None
    target = device or next(iter(jax.device_put(np.zeros((), np.int32)).devices()))
    try:
        from jax._src.core import ShapedArray
        from jax._src.interpreters.pxla import batched_device_put

        sharding = jax.sharding.SingleDeviceSharding(target)
        avals: dict[Any, Any] = {}
        results = []
        for array, weak_type in zip(arrays, weak_types, strict=True):
            key = (array.shape, array.dtype, weak_type)
            aval = avals.get(key)
            if aval is None:
                aval = avals[key] = ShapedArray(array.shape, array.dtype, weak_type=weak_type)
            results.append(batched_device_put(aval, sharding, [array], [target], committed))
        return results
    except (ImportError, AttributeError, TypeError):
        results = [jax.device_put(array, device) for array in arrays]
        return [
            set_weak_type(result) if weak_type else result
            for result, weak_type in zip(results, weak_types, strict=True)
        ]


def set_weak_type(array: Any) -> Any:
    """The same array with a weak type.

    The fallback computes with a Python scalar's weak type, which keeps values but copies.
    """
    import jax

    try:
        from jax._src.lax.lax import _convert_element_type

        return _convert_element_type(array, array.dtype, weak_type=True)
    except (ImportError, AttributeError, TypeError):
        zero = jax.numpy.full(array.shape, array.dtype.type(0).item())
        return zero.at[...].set(array)
