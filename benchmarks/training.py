"""The cost of asynchronous saves for a training loop that donates its state.

    python benchmarks/training.py               all; writes training.md
    python benchmarks/training.py --case smoke  a state of 6 MB, to check that it works

Each row is measured in its own process. Every round takes a step without a save, saves
asynchronously, takes the next step at once (which donates the state that is being saved), and waits
for the save.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
PACKAGES = ["cordwood", "orbax-checkpoint", "jax", "numpy"]
CONTENDERS = ("cordwood", "orbax")


class Case(NamedTuple):
    """A state, its number of devices, and its number of saves."""

    title: str
    width: int  # of the GPT-2-shaped model
    layers: int
    devices: int
    saves: int


CASES = {
    "one": Case("One device", 768, 12, 1, 5),
    "eight": Case("Eight devices, each leaf cut over them", 768, 12, 8, 5),
    "one-50": Case("One device, 50 saving steps", 256, 12, 1, 50),
    "eight-50": Case("Eight devices, 50 saving steps", 256, 12, 8, 50),
    "smoke": Case("A little state", 8, 2, 8, 2),
}


class Row(NamedTuple):
    """Medians in seconds; memory in bytes beyond the state and what the process held before."""

    state_bytes: int
    alone: float
    call: float
    step: float
    done: float
    memory: int


def measure(contender: str, case: Case, folder: Path) -> Row:
    """Train and save; return the medians."""
    import jax

    from benchmarks.directory_trees import spread
    from benchmarks.memory import peak_bytes, reset_peak
    from benchmarks.rounds import remove
    from benchmarks.trees import gpt2_adam

    def update(state: Any) -> Any:
        return jax.tree.map(lambda leaf: (leaf * 0.999).astype(leaf.dtype), state)

    state = gpt2_adam(case.width, layers=case.layers)
    if case.devices > 1:
        state = spread(state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    step = jax.jit(update, donate_argnums=0)
    save = _saver(contender)

    def timed(work: Callable[[], Any]) -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    def advance() -> None:
        nonlocal state
        state = jax.block_until_ready(step(state))

    rounds: list[tuple[float, float, float, float]] = []
    before = 0
    for number in range(case.saves + 1):  # the first one warms up
        alone = timed(advance)
        if number == 1:
            before = reset_peak()
        os.sync()
        path = folder / str(number)
        begun = time.perf_counter()
        wait = save(path, state)
        call = time.perf_counter() - begun
        after = timed(advance)
        wait()
        rounds.append((alone, call, after, time.perf_counter() - begun))
        del wait
        remove(path)
    memory = max(0, peak_bytes() - before)
    alone, call, after, done = map(median, zip(*rounds[1:], strict=True))
    return Row(size, alone, call, after, done, memory)


def _saver(contender: str) -> Callable[[Path, Any], Callable[[], Any]]:
    """Return a function that starts a save and returns a function that waits for it."""
    if contender == "cordwood":
        import cordwood

        return lambda path, state: cordwood.save_async(path, state).wait
    import orbax.checkpoint as ocp

    checkpointer = ocp.StandardCheckpointer()

    def save(path: Path, state: Any) -> Callable[[], Any]:
        checkpointer.save(path, state)
        return checkpointer.wait_until_finished

    return save


def measure_in_child(contender: str, name: str, folder: Path) -> Row:
    flags = f"--xla_force_host_platform_device_count={CASES[name].devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, "--case", name, "--contender", contender]
    command += ["--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Row(*json.loads(done.stdout.splitlines()[-1]))


_HOW = """\
Written by `make bench`. A jitted step replaces each leaf of a GPT-2-shaped f32 state with Adam's
moments (447 leaves), and donates the old state. The figures are medians of the rounds: a step while
nothing is saved; the time that the asynchronous save call blocks the loop; the step right after it,
which donates the very state that is being saved; and the time from the call until the save is done.
Memory is the peak of resident memory over all rounds minus the resident memory before the first:
the additional memory of a loop that saves. Each row is measured in its own process."""


def as_markdown(cases: dict[str, dict[str, Row]], versions: dict[str, str], machine: str) -> str:
    """Return the page of tables."""
    from benchmarks.pages import page_head

    lines = page_head("Asynchronous saves in a training loop", _HOW, versions, machine)
    for name, rows in cases.items():
        case = CASES[name]
        size = next(iter(rows.values())).state_bytes
        lines += [f"## {case.title}", "", f"{size / 1e9:.3f} GB, {case.saves} rounds", ""]
        lines += ["| ms | step alone | call | next step | until done | extra memory, MiB |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        for contender, row in rows.items():
            times = " | ".join(
                f"{1e3 * seconds:,.1f}" for seconds in (row.alone, row.call, row.step, row.done)
            )
            lines.append(f"| {contender} | {times} | {row.memory / (1 << 20):,.0f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=["all", *CASES], default="all")
    parser.add_argument("--contender", choices=CONTENDERS, help="measure it in this process")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--output", type=Path, default=HERE / "training.md")
    options = parser.parse_args()
    if options.contender:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
            row = measure(options.contender, CASES[options.case], Path(folder))
        print(json.dumps(row))
        return
    names = [name for name in CASES if name != "smoke"]
    cases: dict[str, dict[str, Row]] = {}
    for name in names if options.case == "all" else [options.case]:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        cases[name] = {
            contender: measure_in_child(contender, name, options.folder) for contender in CONTENDERS
        }
    from benchmarks.pages import hardware, versions_of

    versions = versions_of(PACKAGES)
    text = as_markdown(cases, versions, hardware(options.folder))
    print(text)
    if options.case == "all":
        options.output.write_text(text)


if __name__ == "__main__":
    main()
