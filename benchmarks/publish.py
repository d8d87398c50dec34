"""Publish and follow: the encoding of deltas, and the way of new weights to a reader.

    python benchmarks/publish.py              writes publish.md
    python benchmarks/publish.py --mib 64     smaller arrays; prints its page

Steps of Adam are simulated on normal weights: in bfloat16, and in float32 masters that are cast to
bfloat16. The ways to a reader are a full save and load, and publish and update, through a folder
and through a store in memory behind a link of 50 ms and 1 GB/s, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

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


def versions(mib: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield versions of a tree of bfloat16 arrays, of which 3 % change each time."""
    import jax.numpy as jnp
    import ml_dtypes

    rng = np.random.default_rng(0)
    layers = 16
    shape = (mib * MIB // 2 // layers // 1024, 1024)
    masters = [rng.standard_normal(shape, np.float32) * np.float32(SIGMA) for _ in range(layers)]
    direction = rng.standard_normal(shape, np.float32) * np.float32(0.23)
    rate = rate_for(0.03, masters[0].reshape(-1), direction.reshape(-1), masters=True)
    for number in range(count):
        shifted = np.roll(direction, number) * np.float32(rate)
        for layer in masters:
            layer -= shifted
        yield {
            f"layer_{n}": jnp.asarray(layer.astype(ml_dtypes.bfloat16))
            for n, layer in enumerate(masters)
        }


def ways(root: str, mib: int, rounds: int) -> dict[str, float]:
    """Return medians of seconds of a full save and load, and of publish and update."""
    import jax

    import cordwood

    publisher = cordwood.WeightPublisher(f"{root}/versions", full_every=1000)
    follower: cordwood.WeightFollower | None = None
    times: dict[str, list[float]] = {name: [] for name in ("save", "load", "publish", "update")}
    for number, tree in enumerate(versions(mib, rounds + 2)):
        jax.block_until_ready(tree)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
        if follower is None:
            follower = cordwood.WeightFollower(f"{root}/versions", like=like)

        def save(number: int = number, tree: Any = tree) -> None:
            cordwood.save(f"{root}/full-{number}", tree)

        def load(number: int = number, like: Any = like) -> Any:
            return cordwood.load(f"{root}/full-{number}", like=like)

        def publish(number: int = number, tree: Any = tree) -> None:
            publisher.publish(number, tree).wait()

        calls: dict[str, Callable[[], Any]] = {
            "save": save,
            "load": load,
            "publish": publish,
            "update": follower.update,
        }
        made = {}
        for name in ("save", "load", "publish", "update") if number % 2 else calls:
            before = time.perf_counter()
            made[name] = jax.block_until_ready(calls[name]())
            seconds = time.perf_counter() - before
            if number > 1:  # the first version is whole, and memory is fresh
                times[name].append(seconds)
        for name in ("load", "update"):
            assert all(bool((made[name][key] == tree[key]).all()) for key in tree)
    return {name: statistics.median(each) for name, each in times.items()}


def way_rows(mib: int, rounds: int, folder: Path) -> Iterator[str]:
    """Yield a row for each place: a folder, and a store behind a slow link."""
    from benchmarks.object_store import BUCKET, ENVIRONMENT, running

    yield way_row("a folder", ways(str(folder), mib, rounds))
    os.environ.update(ENVIRONMENT)
    with (
        running("tests.storage.s3_server") as (direct, _),
        running("benchmarks.slow_link", direct) as (slow, _),
    ):
        os.environ["AWS_ENDPOINT_URL"] = slow
        yield way_row("a store, 50 ms, 1 GB/s", ways(f"s3://{BUCKET}/run", mib, rounds))


def way_row(name: str, seconds: dict[str, float]) -> str:
    whole = seconds["save"] + seconds["load"]
    delta = seconds["publish"] + seconds["update"]
    cells = [name, *[f"{each:.3f}" for each in seconds.values()], f"{whole / delta:.1f}"]
    return f"| {' | '.join(cells)} |"


def page(mib: int, rounds: int, folder: Path) -> str:
    from benchmarks.pages import hardware, page_head, versions_of

    lines = page_head("Publish and follow", _HOW, versions_of(PACKAGES), hardware(folder))
    target = f"encode {ENCODE_MIN} GB/s and apply {APPLY_MIN} GB/s at 3 %"
    lines += [
        f"## Encoding, {mib} MiB of bfloat16, one thread",
        "",
        f"Targets: {target}; memcpy is a copy of as much.",
        "",
        f"| {' | '.join(_ENCODING_COLUMNS)} |",
        f"|{'---|' * len(_ENCODING_COLUMNS)}",
        *encoding_rows(mib * MIB // 2),
        "",
        f"## From the trainer to a reader, {mib} MiB of bfloat16, 3 % changed",
        "",
        f"Medians of {rounds} rounds, in seconds, in one process.",
        f"Target: publish and update are {WAY_MIN:g} times as fast as a full save and load.",
        "",
        "| through | save | load | publish | update | times as fast |",
        f"|{'---|' * 6}",
        *way_rows(mib, rounds, folder),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=0, help="print a page of smaller arrays")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=HERE.parent / "build")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        text = page(arguments.mib or 512, arguments.rounds, Path(folder))
    if arguments.mib:
        print(text)
    else:
        (HERE / "publish.md").write_text(text)


if __name__ == "__main__":
    main()
