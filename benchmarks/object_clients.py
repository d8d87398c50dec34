"""obstore beside TensorStore's KvStore on one S3 server: throughput, small requests, memory.

`python -m benchmarks.object_clients` starts the server of the tests in a process of its own, and
measures with and without `slow_link` before it; `--endpoint URL` measures another server, with
the bucket "bucket" and the keys of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Prints a table for
`docs/design/0013-object-stores.md`.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

MIB = 1 << 20
RANGE_SIZE = 4 * MIB
SMALL_COUNT = 200
REGION = "eu-west-1"


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """Start a server of a module and yield the URL that it prints."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        try:
            yield one.stdout.readline().strip()
        finally:
            one.terminate()


def peak_during(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call and by how many MiB the resident memory rose at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    start = time.perf_counter()
    call()
    return time.perf_counter() - start, _memory("VmHWM") - before


def _memory(name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def cases(url: str, size: int) -> dict[str, tuple[Callable[[], object], float, str]]:
    """Return what is measured by name: the call, its amount and the unit per second."""
    import tensorstore  # heavy

    client = S3Store("bucket", endpoint=url, region=REGION, client_options={"allow_http": True})
    spec = {
        "driver": "s3",
        "bucket": "bucket",
        "endpoint": url,
        "aws_region": REGION,
        "aws_credentials": {"type": "environment"},
    }
    kvstore: Any = tensorstore.KvStore.open(spec).result()
    data = memoryview(os.urandom(size))
    obstore.put(client, "read", data)
    gigabytes = size / 1e9
    bounds = [(start, min(start + RANGE_SIZE, size)) for start in range(0, size, RANGE_SIZE)]
    results: dict[str, tuple[Callable[[], object], float, str]] = {}

    def put(**options: Any) -> Callable[[], object]:
        return lambda: obstore.put(client, "write", data, **options)

    def ranges(threads: int) -> Callable[[], object]:
        def get(start: int, stop: int) -> int:
            return len(obstore.get_range(client, "read", start=start, end=stop))

        def read() -> None:
            with ThreadPoolExecutor(threads) as pool:
                assert sum(pool.map(lambda each: get(*each), bounds)) == size

        return read

    def tensorstore_ranges() -> None:
        requests = [kvstore.read("read", byte_range=slice(*each)) for each in bounds]
        assert sum(len(request.result().value) for request in requests) == size

    results["write, obstore, one PUT"] = put(use_multipart=False), gigabytes, "GB/s"
    for part, flying in ((8, 4), (8, 8), (8, 12), (16, 4), (16, 8), (64, 4)):
        options = {"use_multipart": True, "chunk_size": part * MIB, "max_concurrency": flying}
        results[f"write, obstore, {part} MiB x {flying}"] = put(**options), gigabytes, "GB/s"
    whole = bytes(data)
    results["write, TensorStore, one PUT"] = (
        lambda: kvstore.write("write", whole).result(),
        gigabytes,
        "GB/s",
    )
    for threads in (8, 16, 24):
        results[f"4 MiB ranges, obstore, {threads} threads"] = ranges(threads), gigabytes, "GB/s"
    starts, stops = zip(*bounds, strict=True)
    results["4 MiB ranges, obstore.get_ranges"] = (
        lambda: obstore.get_ranges(client, "read", starts=starts, ends=stops),
        gigabytes,
        "GB/s",
    )
    results["4 MiB ranges, TensorStore"] = tensorstore_ranges, gigabytes, "GB/s"

    def small() -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: obstore.put(client, f"small/{n}", b"x"), range(SMALL_COUNT)))

    def tensorstore_small() -> None:
        for request in [kvstore.write(f"small/{n}", b"x") for n in range(SMALL_COUNT)]:
            request.result()

    results["small writes, obstore, 16 threads"] = small, SMALL_COUNT, "1/s"
    results["small writes, TensorStore"] = tensorstore_small, SMALL_COUNT, "1/s"
    return results


def main() -> None:
    """Measure every case in each round, one after the other, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=512, help="MiB")
    options = parser.parse_args()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "key")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "secret")
    with ExitStack() as stack:
        endpoint = options.endpoint or stack.enter_context(process("tests.storage.s3_server"))
        slow = stack.enter_context(process("benchmarks.slow_link", endpoint))
        measured = {url: cases(url, options.size * MIB) for url in (endpoint, slow)}
        runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(options.rounds):
            for name in measured[endpoint]:
                for url in (endpoint, slow):
                    runs.setdefault((name, url), []).append(peak_during(measured[url][name][0]))
        print("| case | loopback | 50 ms, 1 GB/s | peak memory, MiB |\n|---|---|---|---|")
        for name, (_, amount, unit) in measured[endpoint].items():
            speeds = [
                f"{amount / statistics.median(run[0] for run in runs[name, url]):.3g} {unit}"
                for url in (endpoint, slow)
            ]
            memory = statistics.median(run[1] for run in runs[name, endpoint])
            print(f"| {name} | {speeds[0]} | {speeds[1]} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
