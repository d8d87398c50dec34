"""The setting of one part, its results in a file, and repeated measurements within its time."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
PROGRAM = Path(__file__).resolve().parent.parent / "gpu.py"
PEERS = ("flax", "orbax", "safetensors", "tensorstore")
MIB = 1 << 20


class Setting(NamedTuple):
    """The input of a part.

    Attributes:
        folder: an empty folder on the disk that is measured; all parts share it.
        dry: True for a dry run: small sizes, and CPU devices that cordwood takes for accelerators.
        until: the time (as of time.time) at which the part begins no further measurement.
        tree_bytes: the size of the tree that the contenders save and load.
        plain_bytes: the size of the file and of the arrays of the plain rates.
        saves: the number of asynchronous saves that are repeated.
        saved_bytes: the size of the tree of the repeated saves.
        ram_folder: the folder for the repeated saves.
    """

    folder: Path
    dry: bool
    until: float
    tree_bytes: int
    plain_bytes: int
    saves: int
    saved_bytes: int
    ram_folder: Path

    def text(self) -> str:
        """Return this setting as JSON, for a child process."""
        return json.dumps(
            {**self._asdict(), "folder": str(self.folder), "ram_folder": str(self.ram_folder)}
        )

    @classmethod
    def of(cls, text: str) -> Setting:
        """Return the setting that `text` made."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("folder", "ram_folder")}
        return cls(**{**values, **paths})

    def share(self, remaining: int) -> float:
        """Return the end of the first of so many measurements that share the time that is left."""
        now = time.time()
        return now + max(0.0, self.until - now) / max(1, remaining)


class NotPossibleError(Exception):
    """A measurement that this machine, or this version of jax, does not allow: no failure."""


class Results:
    """The results of one part, in a file that is written again after each of them.

    If the process dies, the next one goes on after the measurement that killed it.

    Attributes:
        values: the results by the name of the measurement.
        missing: why a measurement was not possible; no failure.
        errors: type and first line of the error of each measurement that failed.
        running: the name of the measurement in progress.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        state = read_state(path)
        self.values: dict[str, Any] = state["values"]
        self.missing: dict[str, str] = state["missing"]
        self.errors: dict[str, str] = state["errors"]
        self.running: str | None = None

    def measure(self, name: str, work: Callable[[], Any]) -> None:
        """Do the work, unless it was done before, and keep its value (JSON) or its error."""
        if name not in self.values:
            value = self.attempt(name, work)
            if value is not None:
                self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        """Keep a value."""
        self.values[name] = value
        self._write()

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """Do the work and return its value; None if it fails or failed before, or is not possible.

        The error is kept. A peer that is not installed is not an error.
        """
        if name in self.missing or name in self.errors:
            return None
        self.running = name
        self._write()
        try:
            return work()
        except NotPossibleError as e:
            self.missing[name] = str(e)
        except ModuleNotFoundError as e:
            if (e.name or "").split(".")[0] in PEERS:
                self.missing[name] = f"{e.name} is not installed"
            else:
                self._keep_error(name, e)
        except Exception as e:  # noqa: BLE001  (is reported, and the other measurements go on)
            self._keep_error(name, e)
        finally:
            self.running = None
            self._write()
        return None

    def _keep_error(self, name: str, error: Exception) -> None:
        traceback.print_exception(error)
        self.errors[name] = error_line(error)

    def _write(self) -> None:
        state = {name: getattr(self, name) for name in ("values", "missing", "errors", "running")}
        write_state(self._path, state)


def read_state(path: Path) -> dict[str, Any]:
    """Return the state of a part from its file; the one of a part that has not begun."""
    if not path.exists():
        return {"values": {}, "missing": {}, "errors": {}, "running": None}
    state: dict[str, Any] = json.loads(path.read_text())
    return state


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write the state of a part to its file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, path)


def error_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


class Rounds(NamedTuple):
    """The seconds of the first round, which may allocate or compile, and of the later ones."""

    first: float
    later: list[float]

    @property
    def median(self) -> float:
        """The median of the later rounds; if there were none, the first."""
        return statistics.median(self.later or [self.first])


def repeat(work: Callable[[], float], *, until: float, most: int = 7) -> Rounds:
    """Repeat a measurement, which returns its seconds, until a time; at least once."""
    first = work()
    later: list[float] = []
    while len(later) < most and time.time() < until:
        later.append(work())
    return Rounds(first, later)


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes; its value is dropped after the clock has stopped."""
    begun = time.perf_counter()
    value = work()
    seconds = time.perf_counter() - begun
    del value
    return seconds


def in_turns(
    works: Mapping[str, Callable[[], float]], *, until: float, most: int = 5
) -> dict[str, Rounds]:
    """Repeat several measurements in turns until a time, each at least once."""
    draw = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(1 + most):
        for name in draw.sample(list(works), len(works)):
            if number == 0 or time.time() < until:
                seconds[name].append(works[name]())
    return {name: Rounds(each[0], each[1:]) for name, each in seconds.items()}
