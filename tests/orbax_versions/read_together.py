"""The program of an environment: restore cases by several processes that share the arrays.

python -m tests.orbax_versions.read_together FOLDER REPORT

It adds the outcomes to a report of `tests.orbax_versions.read`: for each number of processes, the
worst of their outcomes by case and door.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 120
READERS = {"2 reading processes": 2, "4 reading processes": 4}
CASES = ("8 devices, read onto another mesh", "2 processes", "4 processes")
DOORS = (
    "StandardCheckpointer, target",
    "PyTreeCheckpointer, target",
    "CheckpointManager, latest",
    "v1 load, target",
    "v1 training, target",
)


def main(folder: Path, report: Path) -> None:
    outcomes = json.loads(report.read_text())
    for row, count in READERS.items():
        outcomes[row] = _outcomes_of_all(folder, count)
    report.write_text(json.dumps(outcomes, indent=1))


def _outcomes_of_all(folder: Path, count: int) -> dict[str, str]:
    """Run the processes; return what they agree on, and else the first that is not equal."""
    from tests.orbax_versions.outcomes_text import EQUAL

    with socket.socket() as port, tempfile.TemporaryDirectory() as parts:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # gRPC in jax shares it
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"
        command = [sys.executable, "-m", "tests.orbax_versions.read_together", str(folder)]
        files = [Path(parts, str(index)) for index in range(count)]
        # Old versions of jax deadlock in collectives of processes with several devices each.
        flags = "--xla_force_host_platform_device_count=1"
        processes = [
            subprocess.Popen(
                [*command, str(file), address, str(count), str(index)],
                env={**os.environ, "XLA_FLAGS": flags},
            )
            for index, file in enumerate(files)
        ]
        try:
            for process in processes:
                assert process.wait(TIMEOUT_SECONDS) == 0, process.args
        finally:
            for process in processes:
                process.kill()
        reports = [json.loads(file.read_text()) for file in files]
    return {
        name: next((each[name] for each in reports if each[name] != EQUAL), EQUAL)
        for name in reports[0]
    }


def read_as_one_of(folder: Path, report: Path, address: str, count: int, index: int) -> None:
    """Restore the cases as one of several processes."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=count, process_id=index)
    from tests.orbax_versions import doors
    from tests.orbax_versions.trees import SPECS, mesh_of, rows

    spec = jax.sharding.PartitionSpec("y", "x")
    sharding = jax.sharding.NamedSharding(mesh_of(jax.devices(), 2, count // 2), spec)
    like = jax.ShapeDtypeStruct(rows().shape, rows().dtype, sharding=sharding)
    target = dict.fromkeys(SPECS, like)
    outcomes = {}
    for case in CASES:
        for name in DOORS:
            if name in doors.DOORS:
                outcomes[f"{case}: {name}"] = _outcome(folder / case, doors.DOORS[name], target)
    report.write_text(json.dumps(outcomes))


def _outcome(case: Path, door: Any, target: Any) -> str:
    from tests.orbax_versions.outcomes import message_of
    from tests.orbax_versions.outcomes_text import EQUAL

    try:
        restored = door.restore((case / door.place).absolute(), target)
    except Exception as e:  # noqa: BLE001 - any error is an outcome
        return f"{type(e).__name__}: {message_of(e)}"
    return _difference(restored, door.expected(target)) or EQUAL


def _difference(restored: Any, target: Any) -> str:
    """Return the first difference between what this process holds and what it is to hold."""
    import jax
    import numpy as np

    from tests.orbax_versions.trees import rows

    if sorted(restored) != sorted(target):
        return f"the leaves {sorted(restored)}"
    for key, aim in target.items():
        if not isinstance(aim, jax.ShapeDtypeStruct):
            if not np.array_equal(np.asarray(restored[key]), aim):
                return f"{key}: {restored[key]} instead of {aim}"
        elif restored[key].sharding != aim.sharding or restored[key].dtype != aim.dtype:
            return f"{key}: {restored[key].sharding} instead of {aim.sharding}"
        elif not all(
            np.array_equal(shard.data, rows()[shard.index])
            for shard in restored[key].addressable_shards
        ):
            return f"{key}: other values"
    return ""


if __name__ == "__main__":
    places = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        read_as_one_of(*places, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(*places)
