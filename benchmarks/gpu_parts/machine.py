"""The machine: its devices as jax sees them, its driver, and the versions of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import NotPossibleError, Results, Setting
from benchmarks.pages import file_system, hardware

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "ml_dtypes", "xxhash"),
    *("flax", "orbax-checkpoint", "tensorstore", "safetensors", "msgpack"),
)
_QUERY = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"


def measure(setting: Setting, results: Results) -> None:
    """Describe the machine."""
    results.measure("devices", _devices)
    results.measure("versions", _versions)
    results.measure("driver", _driver)
    devices = results.values.get("devices", [])
    results.measure("host", lambda: _host(setting, [device["kind"] for device in devices]))


def _devices() -> list[dict[str, Any]]:
    import jax

    return [
        {
            "platform": device.platform,
            "kind": device.device_kind,
            "memory_kinds": [memory.kind for memory in device.addressable_memories()],
            "memory": device.memory_stats() or {},
            "runtime": " ".join(str(getattr(device.client, "platform_version", "")).split()),
        }
        for device in jax.devices()
    ]


def _versions() -> dict[str, str]:
    import cordwood

    versions = {"cordwood": cordwood.__version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _driver() -> list[str]:
    try:
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except FileNotFoundError as e:
        raise NotPossibleError("there is no nvidia-smi") from e
    except (subprocess.SubprocessError, OSError) as e:
        raise NotPossibleError(f"nvidia-smi failed: {type(e).__name__}") from e
    return done.stdout.strip().splitlines()


def _host(setting: Setting, kinds: list[str]) -> dict[str, Any]:
    kind = kinds[0] if kinds else "no device"
    return {
        "line": hardware(setting.folder, f"{len(kinds)} x {kind}" if len(kinds) > 1 else kind),
        "system": f"{platform.system()} {platform.release()}",
        "cores that this process may use": len(os.sched_getaffinity(0)),
        "disk": f"{file_system(setting.folder)}, {_free_gib(setting.folder)} free",
        "RAM disk": f"{file_system(setting.ram_folder)}, {_free_gib(setting.ram_folder)} free",
    }


def _free_gib(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / (1 << 30):.1f} GiB"
