"""Fuzzer of readers whose files change: `make fuzz`, or `python tests/fuzz_changes.py`.

One process reads a file or directory by every verb, and another one meanwhile rewrites it in place,
cuts it short, extends, replaces and deletes it. Whatever happens:

- the reading process does not end by a signal;
- each tree, difference and page is of one version as a whole, or the call raises an error of
  cordwood's, FileNotFoundError, or NotADirectoryError (a file is there again where a verb that
  found none has looked for a directory).

Formats without digests cannot show that a file was just being rewritten when it was opened. Only
then, as a counter in shared memory tells, a mixture is accepted of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SEED = 20261125
VERSIONS = 4
# Elements of the three leaves. All elements of a leaf are the version, plus the number of the leaf.
SIZES = (60_000, 3_000, 5)
DIRECTORIES = ("packs", "zarr", "shards")
WITH_DIGESTS = ("safetensors", "npz", "msgpack.gz", "msgpack.zst", *DIRECTORIES)
STEP = 10  # between versions, so that no leaf of one version looks like one of another


class Silent(Exception):
    """A result that is of no version."""


# The process that changes the files


class Counter32:
    """A counter in a file that two processes map; odd while a file is being rewritten."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def value(self) -> int:
        return int.from_bytes(self._map[:8], "little")

    def add(self) -> None:
        self._map[:8] = (self.value + 1).to_bytes(8, "little")


def change_for_ever(folder: Path, seed: int, parent: int) -> None:
    """Change the file or directory `folder/x*` until the parent process ends."""
    rng = random.Random(seed)
    counter = Counter32(folder / "counter")
    (place,) = (folder / "place").iterdir()
    sources = sorted((folder / "versions").iterdir())
    change = change_directory if sources[0].is_dir() else change_file
    while os.getppid() == parent:
        change(place, rng.choice(sources), rng, counter)
        time.sleep(rng.choice((0, 0.0005, 0.002, 0.01)))


def change_file(place: Path, source: Path, rng: random.Random, counter: Counter32) -> None:
    data = source.read_bytes()
    kind = rng.choice(("rewrite", "rewrite", "slowly", "truncate", "extend", "replace", "delete"))
    counter.add()
    if kind == "delete":
        place.unlink(missing_ok=True)
    elif kind == "replace" or not place.exists():
        place.with_name("new").write_bytes(data)
        os.replace(place.with_name("new"), place)
    elif kind == "truncate":
        os.truncate(place, rng.randrange(place.stat().st_size + 1))
    elif kind == "extend":
        with place.open("ab") as file:
            file.write(data[: rng.randrange(1 << 16)])
    else:
        with place.open("r+b", buffering=0) as file:
            step = len(data) if kind == "rewrite" else rng.randrange(1, len(data))
            for start in range(0, len(data), step):
                file.write(data[start : start + step])
            file.truncate(len(data))
    counter.add()
    if kind in ("truncate", "extend", "delete"):
        time.sleep(rng.choice((0, 0.003)))
        counter.add()
        place.with_name("new").write_bytes(data)
        os.replace(place.with_name("new"), place)
        counter.add()


def change_directory(place: Path, source: Path, rng: random.Random, counter: Counter32) -> None:
    """Change one file of a directory, then put another version in its place."""
    with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
        files = sorted(path for path in place.rglob("*") if path.is_file())
        path = rng.choice(files)
        kind = rng.choice(("rewrite", "truncate", "extend", "delete", "nothing"))
        size = path.stat().st_size
        if kind == "rewrite":
            with path.open("r+b") as file:
                file.seek(rng.randrange(size))
                file.write(rng.randbytes(min(64, size)))
        elif kind == "truncate":
            os.truncate(path, rng.randrange(size))
        elif kind == "extend":
            with path.open("ab") as file:
                file.write(bytes(100))
        elif kind == "delete":
            path.unlink()
    time.sleep(rng.choice((0, 0.003)))
    new, old = place.parent.parent / "new", place.parent.parent / "old"
    shutil.copytree(source, new)
    counter.add()
    os.rename(place, old)
    os.rename(new, place)
    counter.add()
    shutil.rmtree(old)


# The process that reads


def tree(version: int) -> dict[str, Any]:
    import numpy as np

    return {
        name: np.full(size, version * STEP + number, np.float32)
        for number, (name, size) in enumerate(zip("abc", SIZES, strict=True))
    }


def require_version(leaves: dict[str, Any]) -> None:
    """Raise Silent unless the leaves are of one version, each a whole."""
    import numpy as np

    versions = set()
    for number, name in enumerate("abc"):
        if name in leaves:
            array = np.asarray(leaves[name])
            versions |= {float(each) - number for each in np.unique(array)}
            if array.size != SIZES[number]:
                versions |= {-1.0}
    if len(versions) != 1 or not versions <= {i * STEP * 1.0 for i in range(VERSIONS)}:
        raise Silent(f"a tree of the versions {sorted(versions)[:9]}")


def save_version(path: Path, name: str, version: int) -> None:
    import cordwood
    from tests.changing_files import FORMATS

    if name == "shards":
        packs = path.with_name("packs")
        cordwood.save(packs, tree(version))
        cordwood.convert(packs, path, format="hugging_face")
        shutil.rmtree(packs)
    elif name in DIRECTORIES:
        cordwood.save(path, tree(version), format=name)
    else:
        path.write_bytes(FORMATS[name][1](tree(version), path.parent))
        for other in path.parent.glob("made*"):
            other.unlink()


class Target(NamedTuple):
    """A file or directory that one process changes and another one reads."""

    name: str  # of the format
    path: Path
    old: Path  # version 0, which nobody changes

    @property
    def leaves(self) -> int:
        return 1 if self.name == "npy" else len(SIZES)


def as_leaves(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return dict(zip("abc", value if isinstance(value, list) else [value], strict=False))


def like_of(target: Target) -> Any:
    return list(tree(0).values()) if target.name == "eqx" else None


def load(target: Target) -> None:
    import cordwood

    require_version(as_leaves(cordwood.load(target.path, like_of(target))))


def open_lazily(target: Target) -> None:
    import cordwood

    with cordwood.open(target.path) as checkpoint:
        time.sleep(0.003)
        leaves = {}
        for name, leaf in zip("abc", checkpoint.values(), strict=False):
            leaves[name] = leaf[:]
        require_version(leaves)
        time.sleep(0.002)
        require_version(as_leaves(checkpoint.load(like_of(target))))


def verify(target: Target) -> None:
    import cordwood

    cordwood.verify(target.path)


def detect(target: Target) -> None:
    import cordwood

    cordwood.detect(target.path)


def diff(target: Target) -> None:
    import cordwood

    found = cordwood.diff(target.path, target.old)
    if not found.equal and len(found.leaves) != target.leaves:
        raise Silent(f"{len(found.leaves)} of {target.leaves} leaves differ")


def convert(target: Target) -> None:
    import cordwood

    out = target.old.parent / "converted.safetensors"
    cordwood.convert(target.path, out, overwrite=True)
    require_version(as_leaves(cordwood.load(out)))


def copy(target: Target) -> None:
    import cordwood

    out = target.old.parent / f"copy{''.join(target.path.suffixes)}"
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    cordwood.copy(target.path, out)
    require_version(as_leaves(cordwood.load(out, like_of(target))))


def view(target: Target) -> None:
    from cordwood.viewer.resources import Resources
    from cordwood.viewer.sources import OpenArguments, open_sources

    sources = open_sources(str(target.path), None, OpenArguments())
    try:
        resources = Resources(sources)
        (name,) = sources.paths
        resources.answer_json(f"checkpoint/{name}")
        time.sleep(0.002)
        for number in range(target.leaves):
            answer = resources.answer(f"statistics/{name}/{number}/all")
            low, high = answer["min"], answer["max"]
            if low != high:
                raise Silent(f"the elements of leaf {number} are from {low} to {high}")
    finally:
        sources.close()


VERBS: tuple[Callable[[Target], None], ...] = (
    load,
    open_lazily,
    verify,
    detect,
    diff,
    convert,
    copy,
    view,
)
NO_NAMES = (diff, convert)  # of leaves: these need names
_NO_COPY = ("zarr", "shards")  # copy is for packs and single files


def names() -> tuple[str, ...]:
    from tests.changing_files import FORMATS

    return (*FORMATS, *DIRECTORIES)


class Openings:
    """Watches the guard: was a file being rewritten when its state was noted?"""

    def __init__(self, counter: Counter32) -> None:
        self._counter = counter
        self.unsure = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        from cordwood.io import changed_files, open_files

        real = changed_files.file_state

        def file_state(fd: int) -> Any:
            before = self._counter.value
            state = real(fd)
            self.unsure |= before % 2 == 1 or self._counter.value != before
            return state

        vars(open_files)["file_state"] = file_state
        try:
            yield
        finally:
            vars(open_files)["file_state"] = real


def read_for(name: str, folder: Path, *, seconds: float, calls: int, seed: int) -> dict[str, Any]:
    """Read a file of a format while another process changes it; return the counts."""
    from cordwood.errors import CordwoodError

    suffix = "" if name in DIRECTORIES else f".{_suffix(name)}"
    for part in ("versions", "place", "fixed"):
        (folder / part).mkdir(parents=True)
    for version in range(VERSIONS):
        save_version(folder / "versions" / f"{version}{suffix}", name, version)
    first = folder / "versions" / f"0{suffix}"
    target = Target(name, folder / "place" / f"x{suffix}", folder / "fixed" / f"old{suffix}")
    for path in (target.path, target.old):
        (shutil.copytree if first.is_dir() else shutil.copyfile)(first, path)
    (folder / "counter").write_bytes(bytes(8))
    counter = Counter32(folder / "counter")
    verbs = [
        verb
        for verb in VERBS
        if not (name == "eqx" and verb in NO_NAMES) and not (name in _NO_COPY and verb is copy)
    ]
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    rng = random.Random(seed)
    command = [sys.executable, __file__, "--change", str(folder), "--seed", str(seed)]
    other = subprocess.Popen([*command, "--parent", str(os.getpid())])
    try:
        end = time.monotonic() + seconds
        while sum(outcomes.values()) < calls and time.monotonic() < end and not failures:
            verb = rng.choice(verbs)
            openings = Openings(counter)
            try:
                with openings.watched():
                    verb(target)
                outcomes["read"] += 1
            except Silent as e:
                if openings.unsure and name not in WITH_DIGESTS:
                    outcomes["was being rewritten when it was opened"] += 1
                else:
                    failures.append(f"{name}: {verb.__name__}: {e}")
            except (CordwoodError, FileNotFoundError, NotADirectoryError) as e:
                outcomes[type(e).__name__] += 1
            except Exception as e:  # noqa: BLE001  (each is reported)
                failures.append(f"{name}: {verb.__name__}: {type(e).__name__}: {e}")
    finally:
        other.kill()
        other.wait()
    return {"outcomes": dict(outcomes), "failures": failures}


def _suffix(name: str) -> str:
    from tests.changing_files import FORMATS

    return FORMATS[name][0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Change files while cordwood reads them.")
    parser.add_argument("name", nargs="?", help="one format, in this process")
    parser.add_argument("--seconds", type=float, default=60, help="for all formats together")
    parser.add_argument("--calls", type=int, default=10_000_000, help="at most, of each format")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--change", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.change is not None:
        change_for_ever(options.change, options.seed, options.parent)
        return 0
    if options.name is not None:
        with tempfile.TemporaryDirectory() as folder:
            found = read_for(
                options.name,
                Path(folder) / "x",
                seconds=options.seconds,
                calls=options.calls,
                seed=options.seed,
            )
        print(json.dumps(found))
        return len(found["failures"])
    total: Counter[str] = Counter()
    failed = []
    for name in names():
        limits = ["--calls", str(options.calls), "--seed", str(options.seed)]
        limits += ["--seconds", str(options.seconds / len(names()))]
        child = subprocess.run(
            [sys.executable, __file__, name, *limits],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        last = child.stdout.splitlines()[-1] if child.stdout.strip() else "{}"
        found = json.loads(last) if last.startswith("{") else {}
        outcomes = found.get("outcomes", {})
        total.update(outcomes)
        print(f"{name}: {sum(outcomes.values())} calls: {outcomes}", flush=True)
        for failure in found.get("failures", []):
            print(f"  FAILED {failure}")
        if child.returncode:
            failed.append(f"{name} (exit status {child.returncode})")
    print(f"in all {sum(total.values())} calls: {dict(total)}")
    print(f"failed: {', '.join(failed)}" if failed else "no format failed")
    return len(failed)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(Path(__file__).parent.parent))  # for what the tests share
    sys.exit(main())
