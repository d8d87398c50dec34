"""The loads that users make: the first one of a new process, and repeated ones in one process.

    python benchmarks/resume.py                          writes resume.md
    python benchmarks/resume.py --tree smoke --rounds 1  a tree of 2 MB, to check that it works

A training run that resumes makes one load, in a new process. The time depends on the free memory of
the machine: the host of a virtual machine takes back memory that was free for a while. So each
contender runs in its own processes: after it has idled for three seconds
("cold"), after another process has touched and freed twice the memory that the tree takes
("warm"), and six times in a row, with nothing touched before ("repeated"). At last all contenders
save and load in turns in one process, on a smaller tree (`benchmarks/in_turns.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks import in_turns  # noqa: E402

PACKAGES = ["cordwood", "flax", "safetensors", "orbax-checkpoint", "eformer", "jax", "numpy"]
IDLE_SECONDS = 3.0
REPEATS = 6
MODES = ("cold", "warm", "repeated")

OURS = "cordwood.load .safetensors to jax, verified"
OURS_MSGPACK = "cordwood.load .msgpack to jax"
OURS_DIRECTORY = "cordwood.load of a directory to jax, verified"
SAFETENSORS = "safetensors.flax.load_file"
FLAX = "flax read + msgpack_restore (numpy leaves)"
ORBAX = "orbax StandardCheckpointer"
EFORMER = "eformer tree_deserialize_leaves"

_HOW = """\
Written by `make bench`. Each figure is the median of interleaved rounds. Each run of a contender
is a new process that has imported its packages and started jax's CPU backend. The page cache is
warm. Cold: the process idles for 3 s before its clock starts. Warm: immediately before the load,
another process touches and frees twice the memory of the tree. Repeated: six loads in one process,
each tree dropped before the next load; the figure is the median of the second and later loads, in
half as many rounds. No memory is touched before the cold and the repeated loads. In turns: in one
process, each library saves a smaller tree to a new path and then loads it; the figures are medians
over several processes of the second and later rounds, and nothing is warmed. There cordwood's saves
are on the disk when they return, and the others' are not. Trust the ratios, not the absolute
numbers."""


class Claim(NamedTuple):
    """In a mode, `other` takes at least `target` times as long as `ours`."""

    mode: str
    ours: str
    other: str
    target: float


CLAIMS = [
    Claim("cold", OURS, SAFETENSORS, 2),
    Claim("cold", OURS_MSGPACK, FLAX, 3),
    Claim("cold", OURS_DIRECTORY, ORBAX, 3),
    Claim("warm", OURS, SAFETENSORS, 2),
    Claim("repeated", OURS, SAFETENSORS, 1),
    Claim("repeated", OURS_DIRECTORY, ORBAX, 1),
    Claim("repeated", OURS_DIRECTORY, EFORMER, 1),
]

CLAIMS_IN_TURNS = [
    Claim("load", in_turns.OURS, in_turns.SAFETENSORS, 2),
    Claim("load", in_turns.OURS_MSGPACK, in_turns.FLAX, 3),
    Claim("load", in_turns.OURS_DIRECTORY, in_turns.ORBAX, 3),
    Claim("save", in_turns.OURS_MSGPACK, in_turns.FLAX, 1),
    Claim("save", in_turns.OURS_DIRECTORY, in_turns.ORBAX, 1),
]
IN_TURNS_WIDTH = 410  # of the model: 0.54 GB
RUNS_IN_TURNS = 5


def prepare(tree: Any, folder: Path) -> None:
    """Write what the contenders load, and the shapes that some of them ask for."""
    import flax.serialization
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    import safetensors.flax
    from eformer.serialization import serialization as eformer

    import cordwood

    cordwood.save(folder / "ours.safetensors", tree)
    cordwood.save(folder / "ours", tree)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "orbax", tree)
    eformer.tree_serialize_leaves(folder / "eformer", tree, commit_callback=lambda: None)
    (folder / "flax.msgpack").write_bytes(flax.serialization.to_bytes(tree))
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
    safetensors.flax.save_file(flat, folder / "theirs.safetensors")
    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype)), tree)
    (folder / "specs.pickle").write_bytes(pickle.dumps(specs))
    for name in (OURS, OURS_MSGPACK, OURS_DIRECTORY):  # compiles what pip compiles of the peers
        make_load(name, folder)()
    os.sync()


def make_load(name: str, folder: Path) -> Callable[[], Any]:
    """Import what a contender needs, and return its load."""
    specs = pickle.loads((folder / "specs.pickle").read_bytes())
    if name == SAFETENSORS:
        import safetensors.flax

        return lambda: safetensors.flax.load_file(folder / "theirs.safetensors")
    if name == FLAX:
        import flax.serialization

        path = folder / "flax.msgpack"
        return lambda: flax.serialization.msgpack_restore(path.read_bytes())
    if name == ORBAX:
        import jax
        import orbax.checkpoint as ocp

        checkpointer = ocp.StandardCheckpointer()
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(
            lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=device), specs
        )
        return lambda: checkpointer.restore(folder / "orbax", abstract)
    if name == EFORMER:
        import jax
        import numpy as np
        from eformer.serialization import serialization as eformer

        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("shards",))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        keys = jax.tree.leaves(eformer.leaf_key_paths(specs))
        shardings = dict.fromkeys(keys, everywhere)
        return lambda: eformer.tree_deserialize_leaves(
            folder / "eformer", mesh, shardings=shardings
        )
    import cordwood

    if name == OURS_MSGPACK:
        return lambda: cordwood.load(folder / "flax.msgpack", like=specs)
    path = folder / ("ours.safetensors" if name == OURS else "ours")
    return lambda: cordwood.load(path, like=specs)


CONTENDERS = [OURS, OURS_MSGPACK, OURS_DIRECTORY, SAFETENSORS, FLAX, ORBAX]
CONTENDERS_OF = {"cold": CONTENDERS, "warm": CONTENDERS, "repeated": [*CONTENDERS, EFORMER]}


def run_contender(name: str, mode: str, folder: Path) -> list[float]:
    """Load as the mode says; return the seconds of each load."""
    import logging

    import jax
    import numpy as np

    for noisy in ("absl", "eformer"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    load = make_load(name, folder)
    jax.block_until_ready(jax.device_put(np.zeros(1, np.float32)) + 1)
    if mode == "cold":
        time.sleep(IDLE_SECONDS)
    if mode == "warm":
        tree_bytes = (folder / "ours.safetensors").stat().st_size
        code = (
            "import sys; from benchmarks.memory import have_memory; have_memory(int(sys.argv[1]))"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(2 * tree_bytes)], check=True, cwd=HERE.parent
        )
    seconds = []
    for _ in range(REPEATS if mode == "repeated" else 1):
        start = time.perf_counter()
        value = load()
        jax.block_until_ready(value)
        seconds.append(time.perf_counter() - start)
        del value
    return seconds


def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians (seconds) by mode and contender."""
    medians: dict[str, dict[str, float]] = {}
    draw = random.Random(0)
    for mode in MODES:
        contenders = CONTENDERS_OF[mode]
        times: dict[str, list[float]] = {name: [] for name in contenders}
        # Each run of the repeated loads gives five figures.
        for _ in range(-(-rounds // 2) if mode == "repeated" else rounds):
            for name in draw.sample(contenders, len(contenders)):
                _warm_page_cache(folder)
                seconds = json.loads(_in_child(folder, "--contender", name, "--mode", mode))
                times[name] += seconds[1:] if mode == "repeated" else seconds
        medians[mode] = {name: statistics.median(each) for name, each in times.items()}
        print(f"measured {mode}", file=sys.stderr, flush=True)
    return medians


def measure_in_turns(folder: Path, runs: int, tree: str) -> dict[str, dict[str, float]]:
    """Return the medians (seconds) of saves and loads by contender, over `runs` processes."""
    times: dict[str, dict[str, list[float]]] = {"save": {}, "load": {}}
    for _ in range(runs):
        for name, pairs in json.loads(_in_child(folder, "--in-turns", "--tree", tree)).items():
            times["save"].setdefault(name, []).extend([save for save, _ in pairs])
            times["load"].setdefault(name, []).extend([load for _, load in pairs])
    print("measured in turns", file=sys.stderr, flush=True)
    return {
        what: {name: statistics.median(each) for name, each in by_name.items()}
        for what, by_name in times.items()
    }


def _warm_page_cache(folder: Path) -> None:
    buffer = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _in_child(folder: Path, *arguments: str) -> str:
    command = [sys.executable, __file__, "--inside", str(folder), *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout.splitlines()[-1] if done.stdout else ""


def _tree_in_turns(name: str) -> Any:
    from benchmarks.directory_trees import smoke
    from benchmarks.trees import gpt2_adam

    return smoke() if name == "smoke" else gpt2_adam(IN_TURNS_WIDTH)


def page(
    medians: Mapping[str, Mapping[str, float]], size_bytes: int, rounds: int, head: Sequence[str]
) -> str:
    """Return the page, in Markdown."""
    from benchmarks.pages import table

    lines = [*head, f"A tree of {size_bytes / 1e9:.3f} GB, {rounds} rounds.", ""]
    for mode in MODES:
        lines += [f"## {mode}", "", *table(f"load, {mode}", medians[mode], size_bytes), ""]
        lines += ["| ratio | measured | at least | |", "|---|---:|---:|---|"]
        for claim in CLAIMS:
            if claim.mode == mode:
                ratio = medians[mode][claim.other] / medians[mode][claim.ours]
                met = "met" if ratio >= claim.target else "**not met**"
                lines.append(
                    f"| {claim.other} / {claim.ours} | {ratio:.2f} | {claim.target:g} | {met} |"
                )
        lines.append("")
    return "\n".join(lines)


def page_in_turns(medians: Mapping[str, Mapping[str, float]], size_bytes: int, runs: int) -> str:
    """Return the section of the saves and loads in turns, in Markdown."""
    from benchmarks.pages import table

    processes = f"{runs} processes of {in_turns.ROUNDS} rounds"
    lines = ["", "## in turns", "", f"A tree of {size_bytes / 1e9:.3f} GB, {processes}.", ""]
    for what in ("load", "save"):
        lines += [*table(f"{what}, in turns", medians[what], size_bytes), ""]
    lines += ["| ratio | measured | at least | |", "|---|---:|---:|---|"]
    for claim in CLAIMS_IN_TURNS:
        ratio = medians[claim.mode][claim.other] / medians[claim.mode][claim.ours]
        met = "met" if ratio >= claim.target else "**not met**"
        name = f"{claim.mode}: {claim.other} / {claim.ours}"
        lines.append(f"| {name} | {ratio:.2f} | {claim.target:g} | {met} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", choices=["gpt2", "smoke"], default="gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=HERE / "resume.md")
    for inner in ("--inside", "--contender", "--mode"):  # of the children
        parser.add_argument(inner, help=argparse.SUPPRESS)
    parser.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.contender:
        seconds = run_contender(options.contender, options.mode, Path(options.inside))
        print(json.dumps(seconds))
        return
    if options.in_turns:
        pairs = in_turns.run_in_turns(_tree_in_turns(options.tree), Path(options.inside))
        print(json.dumps(pairs))
        return
    if options.inside:
        from benchmarks.directory_trees import smoke
        from benchmarks.trees import gpt2_adam

        prepare(smoke() if options.tree == "smoke" else gpt2_adam(), Path(options.inside))
        return
    import jax

    from benchmarks.pages import hardware, page_head, versions_of

    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        _in_child(Path(folder), "--tree", options.tree)
        size_bytes = (Path(folder) / "ours.safetensors").stat().st_size
        medians = measure(Path(folder), options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        runs = min(options.rounds, RUNS_IN_TURNS)
        turns = measure_in_turns(Path(folder), runs, options.tree)
    turns_bytes = sum([leaf.nbytes for leaf in jax.tree.leaves(_tree_in_turns(options.tree))])
    title = "Loads in a new process, and repeated loads: cordwood beside its peers"
    head = page_head(title, _HOW, versions_of(PACKAGES), hardware(options.folder))
    text = page(medians, size_bytes, options.rounds, head)
    text += page_in_turns(turns, turns_bytes, runs)
    if options.tree == "gpt2":
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
