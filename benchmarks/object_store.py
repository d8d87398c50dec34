"""An object store behind a slow link: cordwood beside bare calls of obstore on the same objects.

    python benchmarks/object_store.py             writes object_store.md
    python benchmarks/object_store.py --mib 256   a smaller tree; prints its page

A server of S3 in memory and a proxy run in processes of their own, on loopback. The proxy adds
50 ms to each request, and passes at most 1 GB/s. Each measurement is a new process; the contenders
take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

from benchmarks.pages import hardware  # noqa: E402

LEAVES = 450
ROUNDS = 6
MIB = 1 << 20
PART = 8 * MIB
IN_FLIGHT = 12
BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "eu-west-1",
}


def tree_of(mib: int) -> dict[str, Any]:
    """Return a tree of 450 arrays: two thirds of the bytes are in a third of the arrays."""
    total = mib * MIB // 4
    large, small = total * 2 // 3 // (LEAVES // 3), total // 3 // (LEAVES * 2 // 3)
    noise = np.random.default_rng(0).random(large, np.float32)
    return {str(n): (noise if n % 3 == 0 else noise[:small]) + np.float32(n) for n in range(LEAVES)}


def bare_store() -> Any:
    from obstore.store import S3Store

    return S3Store(
        BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True}
    )


def save_cordwood(name: str, mib: int) -> float:
    import cordwood

    tree = tree_of(mib)
    before = time.perf_counter()
    cordwood.save(f"s3://{BUCKET}/{name}", tree)
    return time.perf_counter() - before


def load_cordwood(name: str, _: int) -> float:
    import cordwood

    before = time.perf_counter()
    tree = cordwood.load(f"s3://{BUCKET}/{name}", to="numpy")
    seconds = time.perf_counter() - before
    assert len(tree) == LEAVES
    return seconds


def save_bare(name: str, _: int) -> float:
    """Put as many objects of the same sizes from memory, in parts, all at once."""
    import obstore

    sizes = json.loads(os.environ["BENCH_SIZES"])
    data = memoryview(np.random.default_rng(0).bytes(max(sizes)))
    store = bare_store()

    def put(number: int) -> None:
        obstore.put(
            store,
            f"{name}/{number}",
            data[: sizes[number]],
            use_multipart=True,
            chunk_size=PART,
            max_concurrency=IN_FLIGHT,
        )

    before = time.perf_counter()
    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(put, range(len(sizes))))
    return time.perf_counter() - before


def load_bare(_: str, __: int) -> float:
    """Get the same objects in ranges, all at once, and keep what was read."""
    import obstore

    store = bare_store()
    sizes = json.loads(os.environ["BENCH_SIZES"])
    names = json.loads(os.environ["BENCH_NAMES"])

    def get(number: int) -> Any:
        starts = list(range(0, sizes[number], PART))
        ends = [min(start + PART, sizes[number]) for start in starts]
        return obstore.get_ranges(store, names[number], starts=starts, ends=ends, coalesce=0)

    before = time.perf_counter()
    with ThreadPoolExecutor(len(sizes)) as pool:
        kept = list(pool.map(get, range(len(sizes))))
    seconds = time.perf_counter() - before
    assert sum(len(part) for parts in kept for part in parts) == sum(sizes)
    return seconds


CONTENDERS = {
    "save cordwood": save_cordwood,
    "save obstore": save_bare,
    "load cordwood": load_cordwood,
    "load obstore": load_bare,
}


@contextmanager
def running(*command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server in a process of its own; yield its URL, which it prints first."""
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), server
        finally:
            server.kill()


def requests_so_far(link: subprocess.Popen[str]) -> dict[str, int]:
    assert link.stdin is not None
    assert link.stdout is not None
    link.stdin.write("\n")
    link.stdin.flush()
    text = link.stdout.readline()
    counts: dict[str, int] = json.loads(text[: text.index("}") + 1].replace("'", '"'))
    return counts


def measure(what: str, name: str, mib: int, **variables: str) -> tuple[float, float]:
    """Run one contender in a new process; return seconds, and the peak of its memory in MiB."""
    command = [sys.executable, __file__, "--child", what, "--name", name, "--mib", str(mib)]
    environment = {**os.environ, **variables}
    out = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=600
    ).stdout
    seconds, peak = json.loads(out.splitlines()[-1])
    return seconds, peak


def run(mib: int, rounds: int) -> str:
    """Measure all contenders; return the page."""
    import obstore
    from obstore.store import S3Store

    seconds: dict[str, list[float]] = {what: [] for what in CONTENDERS}
    peaks: dict[str, list[float]] = {what: [] for what in CONTENDERS}
    counts: dict[str, dict[str, int]] = {}
    with running("tests.storage.s3_server") as (direct, _):
        store = S3Store(
            BUCKET,
            endpoint=direct,
            access_key_id="key",
            secret_access_key="secret",
            region="eu-west-1",
            client_options={"allow_http": True},
        )
        with running("benchmarks.slow_link", direct) as (slow, link):
            variables = {**ENVIRONMENT, "AWS_ENDPOINT_URL": slow}
            measure("save cordwood", "first", mib, **variables)
            found = obstore.list(store, "first").collect()
            data = [each for each in found if each["path"].endswith(".safetensors")]
            variables["BENCH_SIZES"] = json.dumps([each["size"] for each in data])
            variables["BENCH_NAMES"] = json.dumps([each["path"] for each in data])
            for number in range(rounds):
                # Who comes second may find memory that is still warm: the order alternates.
                for what in [*CONTENDERS][:: 1 if number % 2 else -1]:
                    name = "first" if what.startswith("load") else f"{what[5:]}-{number}"
                    before = requests_so_far(link)
                    taken, peak = measure(what, name, mib, **variables)
                    after = requests_so_far(link)
                    seconds[what].append(taken)
                    peaks[what].append(peak)
                    counts[what] = {k: n - before.get(k, 0) for k, n in after.items()}
                    if what.startswith("save"):
                        paths = [
                            each["path"] for page in obstore.list(store, name) for each in page
                        ]
                        obstore.delete(store, paths)
    return page([each["size"] for each in data], seconds, peaks, counts)


def page(
    sizes: list[int],
    seconds: dict[str, list[float]],
    peaks: dict[str, list[float]],
    counts: dict[str, dict[str, int]],
) -> str:
    total = sum(sizes)
    rounds = len(seconds["save cordwood"])
    lines = [
        f"""# An object store behind a slow link

`python benchmarks/object_store.py`: {LEAVES} arrays, {total / 1e9:.2f} GB, in {len(sizes)} data \
objects; S3 in memory, 50 ms for each request, at most 1 GB/s. Medians of {rounds} rounds, new \
processes, in turns. obstore puts and gets the same bytes by bare calls (parts of 8 MiB, 12 at \
once for each object), and checks no digest. Extra memory: the peak of the process, without the \
tree and what imports take.

| | seconds | GB/s | as fast as obstore | extra MiB | requests |
|---|---|---|---|---|---|"""
    ]
    for what in CONTENDERS:
        middle = statistics.median(seconds[what])
        bare = statistics.median(seconds[f"{what[:4]} obstore"])
        requests = ", ".join(f"{n} {k}" for k, n in sorted(counts[what].items()) if n)
        lines.append(
            f"| {what} | {middle:.2f} | {total / middle / 1e9:.2f} | {bare / middle:.2f} | "
            f"{statistics.median(peaks[what]):.0f} | {requests} |"
        )
    return "\n".join([*lines, "", hardware(HERE), ""])


def child(what: str, name: str, mib: int) -> None:
    """Run a contender in this process, and print its seconds and its extra memory in MiB."""
    import jax  # noqa: F401
    import obstore  # noqa: F401

    import cordwood  # noqa: F401

    base = resident_mib()
    taken = CONTENDERS[what](name, mib)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tree = mib if "cordwood" in what or what == "load obstore" else largest_mib()
    print(json.dumps([taken, peak - base - tree]))
    assert threading.active_count() < 100


def largest_mib() -> float:
    return float(max(json.loads(os.environ["BENCH_SIZES"]))) / MIB


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child")
    parser.add_argument("--name", default="")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.name, options.mib)
        return
    text = run(options.mib or 1430, options.rounds)
    if options.mib is None:
        (HERE / "object_store.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
