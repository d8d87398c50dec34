"""Many asynchronous saves of a training loop: the memory of the process after each."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import Results, Setting
from benchmarks.gpu_parts.tree import bytes_of, flat, make_tree, shapes_of

_POLL_SECONDS = 0.005


def measure(setting: Setting, results: Results) -> None:
    """Save again and again; keep the resident memory after each save, and the bytes for staging."""
    results.measure("saves", lambda: _save_repeatedly(setting))


def _save_repeatedly(setting: Setting) -> dict[str, Any]:
    import jax

    import cordwood

    device = jax.devices()[0]
    shapes = shapes_of(setting.saved_bytes)
    state = make_tree(shapes, device)
    path = setting.ram_folder / "repeated"
    resident: list[float] = []
    used: list[float] = []
    staging = 0
    calls: list[float] = []
    begun = time.time()
    for _ in range(setting.saves):
        if time.time() > setting.until and not setting.dry:
            break
        state = jax.block_until_ready(_step()(state))
        start = time.perf_counter()
        pending = cordwood.save_async(path, state)
        calls.append(time.perf_counter() - start)
        staging = max(staging, pinned_bytes())
        state = _step()(state)  # donates what is being saved
        while not pending.done:
            staging = max(staging, pinned_bytes())
            time.sleep(_POLL_SECONDS)
        pending.wait()
        resident.append(resident_mib())
        used.append(used_mib())
    stats = device.memory_stats() or {}
    return {
        "tree_bytes": bytes_of(shapes),
        "leaves": len(flat(shapes)),
        "asked": setting.saves,
        "seconds": time.time() - begun,
        "calls": calls,
        "resident_mib": resident,
        "used_mib": used,
        "staging_bytes": staging,
        "staging_after_bytes": pinned_bytes(),
        "device_peak_bytes": stats.get("peak_bytes_in_use"),
        "threads": threading.active_count(),
    }


@cache
def _step() -> Any:
    import jax

    def step(state: Any) -> Any:
        return jax.tree.map(lambda leaf: (leaf * 0.999).astype(leaf.dtype), state)

    return jax.jit(step, donate_argnums=0)


def pinned_bytes() -> int:
    """Return how many bytes the live jax arrays have in pinned host memory."""
    import jax

    return sum(
        [
            array.nbytes
            for array in jax.live_arrays()
            if not array.is_deleted() and array.sharding.memory_kind == "pinned_host"
        ]
    )


def resident_mib() -> float:
    """Return the resident memory of this process, in MiB."""
    return _kib("/proc/self/status", "VmRSS") / 1024


def used_mib() -> float:
    """Return the memory of the machine that is not available to programs, in MiB.

    The resident memory of a process may lack what a driver has pinned for it.
    """
    available = _kib("/proc/meminfo", "MemAvailable")
    return (_kib("/proc/meminfo", "MemTotal") - available) / 1024


def _kib(file: str, field: str) -> int:
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"{file} has no {field}")
