"""Managers of a run's steps, cordwood's beside its peers', in the same training loop.

    python benchmarks/manager.py               all; writes manager.md
    python benchmarks/manager.py --case smoke  a state of 5 MB: does all of it work?

And what each of them does where saves fail: manager_failures.py. What replicas add to a
step: manager_replicas.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["JAX_PLATFORMS"] = "cpu"
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

PACKAGES = ["cordwood", "orbax-checkpoint", "eformer", "jax", "numpy"]

if TYPE_CHECKING:
    from benchmarks.manager_loop import Measured


def measure_in_child(name: str, folder: Path) -> Measured:
    from benchmarks.manager_loop import Measured

    command = [sys.executable, __file__, "--case", name, "--json", "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    from benchmarks.manager_contenders import quiet
    from benchmarks.manager_failures import answers
    from benchmarks.manager_loop import CASES, measure
    from benchmarks.manager_names import NAMES
    from benchmarks.manager_replicas import MIB, ROUNDS, STEPS, measure_replicas, replica_section
    from benchmarks.manager_report import as_markdown
    from benchmarks.pages import hardware, versions_of

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=["all", *CASES], default="all")
    parser.add_argument("--json", action="store_true", help="print numbers and not tables")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--output", type=Path, default=HERE / "manager.md")
    options = parser.parse_args()
    quiet()
    if options.json:  # a child
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
            print(json.dumps(measure(CASES[options.case], Path(folder))._asdict()))
        return
    failures = {}
    for name in NAMES:
        print(f"{name}: saves that fail ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
            failures[name] = answers(name, Path(folder))
    measured = {}
    names = [name for name in CASES if name != "smoke"]
    for name in names if options.case == "all" else [options.case]:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        measured[name] = measure_in_child(name, options.folder)
    versions = versions_of(PACKAGES)
    mib, rounds, steps = (MIB, ROUNDS, STEPS) if options.case == "all" else (1, 1, 6)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        section = replica_section(measure_replicas(Path(folder), mib, rounds, steps), mib, steps)
    text = as_markdown(measured, failures, section, versions, hardware(options.folder))
    print(text)
    if options.case == "all":
        options.output.write_text(text)


if __name__ == "__main__":
    main()
