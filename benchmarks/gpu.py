"""Saves and loads of arrays on GPUs: correctness, plain rates, cordwood beside its peers, memory.

    make gpu                            writes gpu.md and charts/gpu-*.svg
    python benchmarks/gpu.py            the same with any Python that has jax with CUDA
    python benchmarks/gpu.py --dry-run  all of it on CPU devices, small; prints the page only

Call it in the root of the repository. It needs one GPU or several, eight minutes (`--seconds`) and
no network. cordwood need not be installed. Where xxhash, msgpack or jinja2 (for the charts) is
missing, run `make gpu-wheels` on a machine with a network, and bring the folder benchmarks/wheels
along. A peer that is missing becomes a row that says so.

Each part runs in a process of its own, in its share of the time. If one fails, the page says how,
the others run nevertheless, and the exit status is 1. It is 2 if there is no GPU, or if a package
is missing. `--results` keeps all numbers; `--page-only` makes the page from them, on any machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]

from benchmarks.gpu_parts.carried_wheels import is_missing, unpack_missing  # noqa: E402
from benchmarks.gpu_parts.part import Results, Setting  # noqa: E402
from benchmarks.gpu_parts.run_parts import (  # noqa: E402
    PARTS,
    NoGpuError,
    environment_of,
    run_parts,
)

WHEELS = HERE / "wheels"
NEEDED = ("jax", "numpy", "ml_dtypes", "xxhash", "msgpack")  # by cordwood's saves and loads
SECONDS, DRY_SECONDS = 480, 30


def run_here(name: str, setting: Setting) -> None:
    """Run a part in this process; its results go to a file."""
    part = next(part for part in PARTS if part.name == name)
    with accelerator(dry=setting.dry and part.on_device):
        measure = importlib.import_module(f"benchmarks.gpu_parts.{name}").measure
        measure(setting, Results(setting.folder / f"{name}.json"))


def accelerator(*, dry: bool) -> AbstractContextManager[Any]:
    """Return a context in which cordwood takes CPU devices for accelerators, for a dry run."""
    if not dry:
        return nullcontext()
    from tests.devices.fake_accelerator import fake_accelerator

    return fake_accelerator()


def write_page(run: dict[str, Any], output: Path | None) -> str:
    """Return the page of a run; with `output`, write it and its charts there."""
    from benchmarks.gpu_report import as_markdown

    text = as_markdown(run)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "gpu.md").write_text(text)
        if is_missing("jinja2"):
            print("jinja2 is missing: no charts; python -m benchmarks.charts draws them later")
            return text
        from benchmarks.gpu_charts import files

        for path, svg in files(text, output / "charts").items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(svg)
    return text


def failed(run: dict[str, Any]) -> bool:
    """Return True if a measurement of a run failed, or a part is absent."""
    return len(run["parts"]) < len(PARTS) or any(each["errors"] for each in run["parts"].values())


def measure_all(options: argparse.Namespace, output: Path | None) -> int:
    """Measure, print the page, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="cordwood-wheels-") as unpacked:
        names = unpack_missing(WHEELS, Path(unpacked))
        sys.path.append(unpacked)
        importlib.invalidate_caches()
        missing = [name for name in NEEDED if is_missing(name)]
        if missing:
            print(
                f"missing: {', '.join(missing)}. Install them, or run `make gpu-wheels` on a "
                f"machine with a network and bring the folder {WHEELS.relative_to(HERE.parent)} "
                "along",
                file=sys.stderr,
            )
            return 2
        if names:
            print(f"from carried wheels: {', '.join(names)}", file=sys.stderr)
        paths = [str(HERE.parent / "src"), str(HERE.parent), unpacked]

        def keep(run: dict[str, Any]) -> None:
            if options.results is not None:
                options.results.write_text(json.dumps(run))
            write_page(run, output)

        try:
            run = run_parts(
                options.folder,
                seconds=options.seconds or (DRY_SECONDS if options.dry_run else SECONDS),
                gib=options.gib,
                dry=options.dry_run,
                environment=environment_of(os.environ, paths, dry=options.dry_run),
                keep=keep,
            )
        except NoGpuError as e:
            print(
                f"There is no GPU here ({e}). `python benchmarks/gpu.py --dry-run` does all of it "
                "with CPU devices and small sizes, and writes nothing.",
                file=sys.stderr,
            )
            return 2
        print(write_page(run, None))
        return 1 if failed(run) else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--seconds", type=float, help=f"for all parts together ({SECONDS})")
    parser.add_argument("--gib", type=float, help="the size of the tree; it suits the machine")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure"
    )
    parser.add_argument("--output", type=Path, help="the folder of gpu.md and charts")
    parser.add_argument("--results", type=Path, help="the file for all numbers")
    parser.add_argument("--page-only", action="store_true", help="measure nothing: read --results")
    for inner in ("--part", "--setting", "--first-load"):  # of the children
        parser.add_argument(inner, help=argparse.SUPPRESS)
    parser.add_argument("--on-cpu", nargs="+", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("seconds", "gib"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value:g}: expected more than 0")
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such directory")
    if options.page_only and (options.results is None or not options.results.is_file()):
        parser.error(f"--page-only needs the file of --results, found {options.results}")
    if options.results is not None and not options.results.absolute().parent.is_dir():
        parser.error(f"--results {options.results}: its directory does not exist")
    if options.part:
        run_here(options.part, Setting.of(options.setting))
        return 0
    if options.first_load:
        from benchmarks.gpu_parts.contenders import load_first

        setting = Setting.of(options.setting)
        with accelerator(dry=setting.dry):
            print(json.dumps(load_first(options.first_load, setting)))
        return 0
    if options.on_cpu:
        from benchmarks.gpu_parts.correctness import load_and_save_on_cpu

        print(json.dumps(load_and_save_on_cpu(options.on_cpu)))
        return 0
    output = options.output or (None if options.dry_run else HERE)
    if options.page_only:
        run = json.loads(options.results.read_text())
        print(write_page(run, output))
        return 1 if failed(run) else 0
    return measure_all(options, output)


if __name__ == "__main__":
    sys.exit(main())
