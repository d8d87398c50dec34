"""Bulk work by the executors of Dask, mpi4py and Ray: `make executors` runs it in their packages.

python -m tests.bulk.with_tools dask
python -m tests.bulk.with_tools ray
mpiexec -n 3 python -m mpi4py.futures -m tests.bulk.with_tools mpi
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import cordwood
from cordwood.bulk.task_size import task_size
from cordwood.errors import CorruptionError
from tests.bulk.executors import WorkerThatDiesOnce

FILES = 24


def check(executor: Executor) -> None:
    """Verify, copy, convert and compare a checkpoint, and find damage in it, by an executor."""
    with task_size(1 << 20), tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder, "100"), Path(folder, "copy")
        tree = {str(number): np.full(1 << 18, number) for number in range(FILES)}
        cordwood.save(path, tree, max_shard_bytes=2 << 20)
        assert cordwood.verify(path, executor=executor) == cordwood.verify(path)
        report = cordwood.copy(path, copy, executor=executor)
        assert report.files == FILES
        names = sorted(each.name for each in path.iterdir())
        assert names == sorted(each.name for each in copy.iterdir())
        for name in names:
            assert (path / name).read_bytes() == (copy / name).read_bytes()
        other = Path(folder, "200")
        cordwood.save(
            other, {**tree, "0": tree["1"], "7": tree["7"] + 0.1}, max_shard_bytes=2 << 20
        )
        difference = cordwood.diff(path, other, executor=executor)
        assert difference == cordwood.diff(path, other)
        assert len(difference.leaves) == 2
        for format in ("packs", "zarr"):
            converted, alone = Path(folder, format), Path(folder, f"{format} by one process")
            cordwood.convert(path, converted, format=format, cast="f32", executor=executor)
            cordwood.convert(path, alone, format=format, cast="f32")
            assert cordwood.diff(converted, alone).equal
        with max(path.glob("*.safetensors")).open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x07")
        assert damage_in(path, executor) == damage_in(path, None) != ""


def damage_in(path: Path, executor: Executor | None) -> str:
    """Return the damage in a checkpoint in words; "" for none."""
    try:
        cordwood.verify(path, executor=executor)
    except CorruptionError as e:
        return str(e)
    return ""


def dask() -> None:
    """Check Dask's executor, also while one of its workers is killed."""
    distributed = import_module("distributed")  # not in the environment of the type checker

    def kill_one(client: Any) -> None:
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        with client.get_executor() as executor:
            check(executor)
        killer = threading.Thread(target=kill_one, args=(client,))
        with client.get_executor() as executor:
            killer.start()
            check(executor)
            killer.join()


def mpi() -> None:
    """Check the executor of mpi4py."""
    futures = import_module("mpi4py.futures")
    with futures.MPIPoolExecutor() as executor:
        check(executor)


def ray() -> None:
    """Check the adapter of the documentation for Ray, also while one of its workers is killed."""
    ray = import_module("ray")
    page = Path(__file__).parents[2] / "docs/how-to/bulk.md"
    block = page.read_text().partition("    import concurrent.futures, ray\n")
    lines = (block[1] + block[2]).partition("    cordwood.verify")[0]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(lines), names)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    check(names["RayExecutor"]())
    with tempfile.TemporaryDirectory() as folder:
        check(WorkerThatDiesOnce(names["RayExecutor"](), Path(folder, "died")))
        assert Path(folder, "died").exists()
    ray.shutdown()


if __name__ == "__main__":
    {"dask": dask, "mpi": mpi, "ray": ray}[sys.argv[1]]()
    print(f"{sys.argv[1]}: verify, copy, diff, convert and damage are those of one process")
