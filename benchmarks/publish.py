"""Publish and follow: the encoding of deltas, and the way of new weights to a reader.

    python benchmarks/publish.py              writes publish.md
    python benchmarks/publish.py --mib 64     no larger trees than that; prints its page

Steps of Adam are simulated on normal weights: in bfloat16, and in float32 masters that are cast to
bfloat16. The ways to a reader are a full save and load, and publish and update, in turns: through a
folder, and through a store in memory behind links of 50 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402

PACKAGES = ["cordwood", "jax", "numpy", "zstandard"]
MIB = 1 << 20
TILE = 2 * MIB  # elements of bfloat16 in 4 MiB
# The share of elements that changes, and the most bytes for each of them.
TARGETS = {0.01: 1.4, 0.03: 1.2, 0.08: 1.0}
ENCODE_MIN, APPLY_MIN, WAY_MIN = 1.5, 2.0, 10.0  # GB/s, GB/s, and times as fast
SIGMA = 0.02  # of the weights
ROUNDS = 5
ENCODED_MIB = 256


class Way(NamedTuple):
    """A way from the trainer to a reader that is measured."""

    mib: int  # of the tree
    rate: float | None  # of the link to a store, in bytes/s; None: a folder
    rounds: int


# 100 MB/s is the share of a reader among many. A tree of 1 MiB needs the requests alone.
WAYS = (
    Way(512, None, 5),
    Way(512, 1e9, 5),
    Way(512, 1e8, 3),
    Way(2048, None, 3),
    Way(2048, 1e9, 3),
    Way(1, 1e9, 5),
)
_HOW = """\
Written by `python benchmarks/publish.py`. Weights are normal with a standard deviation of 0.02. An
update of Adam is the learning rate times +1 or -1 in its first step, and times a normal number with
a standard deviation of 0.23 later. The learning rate is such that 1, 3 or 8 % of the elements
change as bfloat16, as nearly as it can."""
_ENCODING_COLUMNS = ["weights", "step", "changed", "smaller", "bytes a changed element", "target"]
_ENCODING_COLUMNS += ["encode, GB/s", "apply, GB/s", "memcpy, GB/s"]


def updated(weights: np.ndarray, rate: float, direction: np.ndarray, *, masters: bool) -> Any:
    """Return the bfloat16 weights before and after a step."""
    import ml_dtypes

    before = weights.astype(ml_dtypes.bfloat16)
    base = weights if masters else before.astype(np.float32)
    return before, (base - np.float32(rate) * direction).astype(ml_dtypes.bfloat16)


def rate_for(share: float, weights: np.ndarray, direction: np.ndarray, *, masters: bool) -> float:
    """Return the learning rate at which that share of the elements changes."""
    low, high = 1e-9, 1e-2
    some, their = weights[: MIB // 2], direction[: MIB // 2]
    for _ in range(24):
        middle = (low * high) ** 0.5
        old, new = updated(some, middle, their, masters=masters)
        if (old.view(np.uint16) != new.view(np.uint16)).mean() < share:
            low = middle
        else:
            high = middle
    return high


def median_of(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def encoding_rows(elements: int) -> Iterator[str]:
    """Yield a row for each kind of weights, step and share that changes; one thread."""
    from cordwood.deltas.tile_encoding import apply_tile, as_words, encode_tile

    rng = np.random.default_rng(0)
    weights = rng.standard_normal(elements, np.float32) * np.float32(SIGMA)
    normal = rng.standard_normal(elements, np.float32)
    steps = {"first": np.sign(normal), "later": normal * np.float32(0.23)}
    for kind in ("bfloat16", "float32 masters"):
        for step, direction in steps.items():
            for share, limit in TARGETS.items():
                masters = kind != "bfloat16"
                rate = rate_for(share, weights, direction, masters=masters)
                old, new = updated(weights, rate, direction, masters=masters)
                before, after = as_words(old, 2), as_words(new, 2)
                starts = range(0, elements, TILE)
                pairs = [(before[a : a + TILE], after[a : a + TILE]) for a in starts]
                encoded = [encode_tile(*pair) for pair in pairs]
                changed = int((before != after).sum())
                target = before.copy()
                tiles = [target[a : a + TILE] for a in starts]

                def apply(encoded: list[bytes] = encoded, tiles: list[Any] = tiles) -> None:
                    for data, tile in zip(encoded, tiles, strict=True):
                        apply_tile(memoryview(data), tile)

                apply()
                assert (target == after).all()
                size = sum(map(len, encoded))

                def encode(pairs: list[Any] = pairs) -> None:
                    for pair in pairs:
                        encode_tile(*pair)

                copy = partial(np.copyto, target, before)
                seconds = [median_of(call) for call in (encode, apply, copy)]
                rates = [before.nbytes / each / 1e9 for each in seconds]
                cells = [kind, step, f"{changed / elements:.2%}", f"{before.nbytes / size:.0f}x"]
                cells += [f"{size / changed:.2f}", f"{limit}"]
                cells += [f"{each:.1f}" for each in rates]
                yield f"| {' | '.join(cells)} |"


def versions(mib: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield versions of a tree of bfloat16 arrays, of which 3 % change each time."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    layers = 16
    shape = (mib * MIB // 2 // layers // 1024, 1024)
    masters = rng.standard_normal(shape, np.float32) * np.float32(SIGMA)
    direction = rng.standard_normal(shape, np.float32) * np.float32(0.23)
    rate = rate_for(0.03, masters.reshape(-1), direction.reshape(-1), masters=True)
    for number in count():
        masters -= np.roll(direction, number) * np.float32(rate)
        layer = masters.astype(ml_dtypes.bfloat16)
        yield {f"layer_{n}": np.roll(layer, 1021 * n) for n in range(layers)}


class Trainer:
    """The program with the weights; each method is a command of the benchmark."""

    def __init__(self, root: str, mib: int) -> None:
        import cordwood

        self._root = root
        self._versions = versions(mib)
        self._publisher = cordwood.WeightPublisher(f"{root}/versions", full_every=1000)
        self._tree: Any = None

    def make(self, number: int) -> int:  # noqa: ARG002
        """Make the next version; return a checksum of it."""
        import jax

        self._tree = None
        self._tree = jax.tree.map(jax.numpy.asarray, next(self._versions))
        return checksum(jax.block_until_ready(self._tree))

    def save(self, number: int) -> None:
        import cordwood

        cordwood.save(f"{self._root}/full-{number}", self._tree)

    def publish(self, number: int) -> None:
        self._publisher.publish(number, self._tree).wait()

    def remove(self, number: int) -> None:
        from cordwood.removing.remove_checkpoint import plan_removal, remove

        remove(plan_removal(f"{self._root}/full-{number}"))


class Reader:
    """The program that needs the weights."""

    def __init__(self, root: str, mib: int) -> None:
        import jax

        import cordwood

        self._root = root
        like = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype)
            for name, array in next(versions(mib)).items()
        }
        self._like = like
        self._follower = cordwood.WeightFollower(f"{root}/versions", like=like)
        self._tree: Any = None

    def load(self, number: int) -> None:
        import jax

        import cordwood

        path = f"{self._root}/full-{number}"
        self._tree = jax.block_until_ready(cordwood.load(path, like=self._like))

    def update(self, number: int) -> None:  # noqa: ARG002
        import jax

        self._tree = jax.block_until_ready(self._follower.update())

    def check(self, number: int) -> int:  # noqa: ARG002
        return checksum(self._tree)


def checksum(tree: Any) -> int:
    import xxhash

    state = xxhash.xxh3_64()
    for _, array in sorted(tree.items()):
        state.update(np.asarray(array).view(np.uint8).data)
    return state.intdigest()


ROLES = {"trainer": Trainer, "reader": Reader}


def serve(role: str, root: str, mib: int) -> None:
    """Execute commands from the standard input; print the seconds and the result of each."""
    program = ROLES[role](root, mib)
    print(flush=True)
    for line in sys.stdin:
        name, number = line.split()
        before = time.perf_counter()
        result = getattr(program, name)(int(number))
        print(time.perf_counter() - before, result or 0, flush=True)


class Program:
    """A trainer or a reader in a process of its own."""

    def __init__(self, role: str, root: str, mib: int) -> None:
        command = [sys.executable, __file__, "--role", role, "--root", root, "--mib", str(mib)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._answer()

    def ask(self, name: str, number: int) -> tuple[float, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {number}\n")
        self._process.stdin.flush()
        seconds, result = self._answer().split()
        return float(seconds), int(result)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()


def ways(root: str, mib: int, rounds: int) -> dict[str, float]:
    """Return medians of seconds of a full save and load, and of publish and update."""
    trainer, reader = Program("trainer", root, mib), Program("reader", root, mib)
    times: dict[str, list[float]] = {name: [] for name in ("save", "load", "publish", "update")}
    full = [(trainer, "save"), (reader, "load")]
    small = [(trainer, "publish"), (reader, "update")]
    for number in range(rounds + 2):
        _, expected = trainer.ask("make", number)
        for program, name in full + small if number % 2 else small + full:
            seconds, _ = program.ask(name, number)
            if number > 1:  # the first version is whole, and memory is fresh
                times[name].append(seconds)
            if program is reader:
                assert reader.ask("check", number)[1] == expected
        trainer.ask("remove", number)
    trainer.close()
    reader.close()
    return {name: statistics.median(each) for name, each in times.items()}


def way_row(way: Way, folder: Path) -> str:
    """Return a row of a way: through a folder, or a store behind a slow link."""
    from benchmarks.object_store import BUCKET, ENVIRONMENT, running

    if way.rate is None:
        name = "a folder"
        seconds = ways(str(folder / str(way.mib)), way.mib, way.rounds)
    else:
        name = f"a store, 50 ms, {way.rate / 1e6:,.0f} MB/s"
        os.environ.update(ENVIRONMENT)
        with (
            running("tests.storage.s3_server") as (direct, _),
            running("benchmarks.slow_link", direct, "--rate", str(way.rate)) as (slow, _),
        ):
            os.environ["AWS_ENDPOINT_URL"] = slow
            seconds = ways(f"s3://{BUCKET}/run", way.mib, way.rounds)
    whole = seconds["save"] + seconds["load"]
    delta = seconds["publish"] + seconds["update"]
    cells = [name, f"{way.mib}", f"{way.rounds}", *[f"{each:.3f}" for each in seconds.values()]]
    return f"| {' | '.join([*cells, f'{whole / delta:.1f}'])} |"


def limit_rows(mib: int, folder: Path) -> Iterator[str]:
    """Yield what memory and page cache of this machine take for as many bytes."""
    size = mib * MIB
    old = np.zeros(size // 8, np.uint64)
    old[::9] = 1
    new = old.copy()
    tiles = [slice(at, at + TILE // 4) for at in range(0, len(old), TILE // 4)]

    def write() -> None:
        with (folder / "limit").open("wb") as file:
            file.write(old.data)

    calls: dict[str, Callable[[], object]] = {
        "comparing two trees in memory": lambda: [(old[at] != new[at]).any() for at in tiles],
        "copying a tree into memory that is in use": lambda: np.copyto(new, old),
        "copying a tree into new memory": old.copy,
        "writing a file, without flushing it to the disk": write,
    }
    for name, call in calls.items():
        yield f"| {name} | {median_of(call):.3f} |"
    (folder / "limit").unlink()


def page(encoded_mib: int, measured: Sequence[Way], folder: Path) -> str:
    from benchmarks.pages import hardware, page_head, versions_of

    lines = page_head("Publish and follow", _HOW, versions_of(PACKAGES), hardware(folder))
    target = f"encode {ENCODE_MIN} GB/s and apply {APPLY_MIN} GB/s at 3 %"
    large = max(way.mib for way in measured)
    lines += [
        f"## Encoding, {encoded_mib} MiB of bfloat16, one thread",
        "",
        f"Targets: {target}; memcpy is a copy of as much.",
        "",
        f"| {' | '.join(_ENCODING_COLUMNS)} |",
        f"|{'---|' * len(_ENCODING_COLUMNS)}",
        *encoding_rows(encoded_mib * MIB // 2),
        "",
        "## From the trainer to a reader, bfloat16, 3 % changed",
        "",
        "Medians of seconds, in two processes: the trainer and the reader.",
        f"Target: publish and update are {WAY_MIN:g} times as fast as a full save and load.",
        "",
        "| through | MiB | rounds | save | load | publish | update | times as fast |",
        f"|{'---|' * 8}",
        *[way_row(way, folder) for way in measured],
        "",
        "A tree of 1 MiB takes the requests alone: three in a row in a publication, three in an",
        f"update. What this machine takes for {large} MiB in memory and page cache, in one thread:",
        "no publication can be faster than the comparison, and no update than a copy.",
        "",
        "| limit | seconds |",
        "|---|---|",
        *limit_rows(large, folder),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=0, help="print a page of smaller arrays")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the most of each row")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build")
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--root")
    arguments = parser.parse_args()
    if arguments.role:
        serve(arguments.role, arguments.root, arguments.mib)
        return
    arguments.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        mib = arguments.mib
        measured = [
            Way(min(mib or way.mib, way.mib), way.rate, min(arguments.rounds, way.rounds))
            for way in WAYS
        ]
        text = page(mib or ENCODED_MIB, list(dict.fromkeys(measured)), Path(folder))
    if arguments.mib:
        print(text)
    else:
        (HERE / "publish.md").write_text(text)


if __name__ == "__main__":
    main()
