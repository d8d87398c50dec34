"""The parts one after another, each in a process of its own and in its share of the time.

This process does not import jax: a GPU belongs to one process at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_parts.part import MIB, PROGRAM, Setting, read_state, write_state
from benchmarks.gpu_parts.sizes import SAVES, Rates, Room, plain_bytes, saved_bytes, tree_bytes

RAM_DISK = Path("/dev/shm")
DRY_DEVICES = 4
DRY_SAVES = 20
_DRY_LIMIT_SECONDS = 300.0  # of a part, on a machine that is busy
_LEAST_LIMIT_SECONDS = 90.0  # the first import of jax reads gigabytes
_MOST_PROCESSES = 4  # of a part whose processes die


class Part(NamedTuple):
    """A part: its name, its share of the time, and True if cordwood uses the device in it."""

    name: str
    share: float
    on_device: bool = True


PARTS = (
    Part("machine", 15, on_device=False),
    Part("correctness", 85),
    Part("disk", 45, on_device=False),
    Part("copies", 65),
    Part("contenders", 160),
    Part("first_loads", 60, on_device=False),
    Part("repeated_saves", 60),
)


class Times(NamedTuple):
    """The seconds of a part: after which it begins nothing more, and after which it is stopped."""

    enough: float
    limit: float


class NoGpuError(Exception):
    """There is no GPU, and no dry run was asked for."""


def times_of(number: int, remaining: float, *, dry: bool) -> Times:
    """Return the times of a part: its share of the seconds that remain for it and later ones."""
    fair = remaining * PARTS[number].share / sum([part.share for part in PARTS[number:]])
    enough = (0.75 if number + 1 < len(PARTS) else 0.9) * fair
    if dry:
        return Times(enough, _DRY_LIMIT_SECONDS)
    return Times(enough, min(remaining, max(_LEAST_LIMIT_SECONDS, 1.3 * fair)))


def run_parts(
    parent: Path,
    *,
    seconds: float,
    gib: float | None,
    dry: bool,
    environment: Mapping[str, str],
    keep: Callable[[dict[str, Any]], Any],
) -> dict[str, Any]:
    """Run all parts, and return what they measured.

    Args:
        parent: the folder on the disk to measure.
        seconds: for all parts together.
        gib: the size of the tree that is saved and loaded; None: what suits the machine.
        dry: True for a dry run.
        environment: of the child processes.
        keep: is called with all results after each part but the first.

    Raises NoGpuError.
    """
    begun = time.time()
    run: dict[str, Any] = {"seconds": seconds, "gib": gib, "dry": dry, "parts": {}}
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix="cordwood-gpu-") as disk,
        tempfile.TemporaryDirectory(dir=_ram_disk(parent), prefix="cordwood-gpu-") as ram,
    ):
        for number, part in enumerate(PARTS):
            times = times_of(number, max(1.0, begun + seconds - time.time()), dry=dry)
            setting = setting_of(run, Path(disk), Path(ram), times)
            if part.name == "contenders":
                run["tree_bytes"] = setting.tree_bytes
            print(f"{part.name} ...", file=sys.stderr, flush=True)
            started = time.time()
            state = run_part(part, setting, times.limit, environment)
            run["parts"][part.name] = {**state, "seconds": time.time() - started}
            if number:
                keep(run)
            elif not dry and not gpus_of(run):
                raise NoGpuError(state["errors"].get("devices", "jax has no device but the CPU"))
    return run


def gpus_of(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the devices that are no CPUs."""
    devices = run["parts"]["machine"]["values"].get("devices", [])
    return [device for device in devices if device["platform"] != "cpu"]


def setting_of(run: Mapping[str, Any], disk: Path, ram: Path, times: Times) -> Setting:
    """Return the setting of the next part, for what the parts before it measured."""
    until = time.time() + times.enough
    if run["dry"]:
        return Setting(disk, True, until, 3 * MIB, 2 * MIB, DRY_SAVES, MIB, ram)
    parts = run["parts"]
    room, rates = room_of(run, disk, ram), rates_of(parts.get("disk", {}).get("values", {}))
    saved, in_ram = saved_bytes(room, rates, times.enough)
    tree = tree_bytes(room, rates, times.enough)
    if run["gib"] is not None:
        tree = int(run["gib"] * 1024) * MIB
    tree = run.get("tree_bytes", tree)  # later parts load what the contenders saved
    return Setting(
        disk, False, until, tree, plain_bytes(room), SAVES, saved, ram if in_ram else disk
    )


def room_of(run: Mapping[str, Any], disk: Path, ram: Path) -> Room:
    """Return how much is free."""
    memory = [gpu["memory"] for gpu in gpus_of(run)] if run["parts"] else []
    device = [
        each["bytes_limit"] - each.get("bytes_in_use", 0)
        for each in memory
        if "bytes_limit" in each
    ]
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_ram = ram.parent == RAM_DISK
    return Room(
        min(device, default=8 << 30),
        max(pages, _available_bytes()),
        shutil.disk_usage(disk).free,
        shutil.disk_usage(ram).free if is_ram else 0,
    )


def rates_of(values: Mapping[str, Any]) -> Rates:
    """Return the best rates of the disk, in bytes per second, or guesses."""
    writes = [
        rate
        for name in ("write with O_DIRECT", "write, buffered")
        for rate in values.get(name, {}).values()
    ]
    reads = list(values.get("read with O_DIRECT", {}).values())
    guess = Rates()
    return Rates(
        max(writes) * 1e9 if writes else guess.write, max(reads) * 1e9 if reads else guess.read
    )


def environment_of(variables: Mapping[str, str], paths: list[str], *, dry: bool) -> dict[str, str]:
    """Return the environment of the child processes, with folders for their imports."""
    environment = dict(variables)
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([*paths, *([known] if known else [])])
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    if dry:
        flags = environment.get("XLA_FLAGS", "")
        flags = " ".join(each for each in flags.split() if "host_platform_device_count" not in each)
        environment["XLA_FLAGS"] = (
            f"{flags} --xla_force_host_platform_device_count={DRY_DEVICES}".strip()
        )
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def run_part(
    part: Part,
    setting: Setting,
    limit: float,
    environment: Mapping[str, str],
    *,
    program: Path = PROGRAM,
) -> dict[str, Any]:
    """Run a part in a process of its own, for at most `limit` seconds; return its state.

    If the process dies in a measurement, this is an error of that measurement, and another process
    goes on with the next.
    """
    path = setting.folder / f"{part.name}.json"
    log = setting.folder / f"{part.name}.log"
    command = [sys.executable, str(program), "--part", part.name, "--setting", setting.text()]
    variables = {**environment, "JAX_ENABLE_X64": "1" if part.name == "correctness" else "0"}
    stop = time.time() + limit
    for _ in range(_MOST_PROCESSES):
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=output, start_new_session=True
            )
            try:
                process.wait(max(0.1, stop - time.time()))
            except BaseException as e:
                os.killpg(process.pid, signal.SIGKILL)  # with its children
                process.wait()
                if not isinstance(e, subprocess.TimeoutExpired):
                    raise
        state = read_state(path)
        if process.returncode == 0:
            break
        late = time.time() >= stop
        reason = f"stopped after {limit:.0f} s" if late else _end_of(process.returncode, log)
        running, state["running"] = state["running"], None
        state["errors"][running or "the whole part"] = reason
        write_state(path, state)
        if late or running is None:
            break
    for name, reason in state["errors"].items():
        print(f"{part.name}: {name}: {reason}", file=sys.stderr, flush=True)
    if state["errors"]:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr, flush=True)
    return state


def _end_of(status: int, log: Path) -> str:
    """Describe the end of a process that failed: by its signal, or the last line that it wrote."""
    if status < 0:
        return f"the process ended with {signal.Signals(-status).name}"
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"the process ended with status {status}"


def _ram_disk(parent: Path) -> Path:
    return RAM_DISK if os.access(RAM_DISK, os.W_OK) else parent


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
