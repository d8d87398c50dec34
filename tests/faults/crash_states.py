"""Every state that a power cut or a kill may leave of a call, and what must hold in each.

    checked = check_crash_states(CrashCase("msgpack", prepare, call, (Tree("m.msgpack"),)), folder)

The call is recorded once. Each state is then written to a directory of its own. There each reader
must see what was there before the call or what is there after it, `verify` must agree with the
readers, and the same call again must leave what it leaves without a crash.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cordwood import StepReader, load, verify
from cordwood.errors import CordwoodError, PrefixError
from cordwood.storage import syscalls
from tests.faults.file_system import (
    BYTES_LEFT,
    BytesLeft,
    Disk,
    Names,
    Replay,
    Trace,
    contents,
    write_disk,
)
from tests.faults.recorder import RecordingSystem
from tests.faults.scenario import same_tree
from tests.faults.systems import LackingSystem
from tests.soak.orbax_files import missing_for_orbax, read_orbax_tree
from tests.soak.roots import HUGGING_FACE_NAME, read_tensors


class Tree(NamedTuple):
    """A tree that a reader looks for."""

    path: str  # of its checkpoint, below the directory
    prefix: str | None = None
    by_hub: bool = False  # read by the index of the Hugging Face hub, without any code of cordwood
    by_orbax: bool = False  # read by the index for Orbax, in the folder `prefix`; may be absent
    metrics: bool = False  # of a step: a StepReader reads its metrics, in place of the tree
    may_be_damaged: bool = False  # before the call; until it ends it may be absent, too
    read: Callable[[str], Any] | None = None  # reads it, given its path, in place of a load


class CrashCase(NamedTuple):
    """A call that changes a directory, and the trees that its readers look for."""

    name: str
    prepare: Callable[[str], object]  # makes what is there before the call, given the directory
    call: Callable[[str], object]
    trees: tuple[Tree, ...]
    lacks: frozenset[str] = frozenset()  # system calls that the file system does not have
    refusal: type[Exception] | None = None  # raised if what the call makes is there already
    is_large: bool = False  # only for long runs
    next_call: Callable[[str], object] | None = None  # removes what a killed call has left


def acknowledge(root: str, *trees: Tree) -> None:
    """Say, inside a call, that a part of it has returned, and must not be lost from now on."""
    system = syscalls.current()
    if isinstance(system, RecordingSystem):
        for tree in trees:
            system.acknowledged[tree] = (len(system.trace.effects), _read(root, tree))


class Effort(NamedTuple):
    """The number of states to check."""

    all_of: int = 6  # up to so many pending changes of names all subsets are tried
    samples: int = 30  # otherwise so many random ones at each moment, besides one lost, one kept
    most: int | None = None  # a random sample of so many of the states; None: all
    kills: int | None = None  # moments at which the process is killed and the call is made again
    most_after_kills: int = 6  # states of a power cut in each of these calls


class Checked(NamedTuple):
    """The result for a call, and the numbers of what was checked."""

    name: str
    effects: int
    states: int  # that differ
    checked: int
    kills: int
    after_kills: int
    problems: list[str]


class _State(NamedTuple):
    """A state after a power cut."""

    moment: int
    lost: frozenset[int]
    bytes_left: Mapping[int, BytesLeft]
    returned: bool  # the call had returned
    disk: Disk


class _Expected(NamedTuple):
    before: Mapping[Tree, Any]  # None: no such tree
    after: Mapping[Tree, Any]
    acknowledged: Mapping[Any, tuple[int, Any]]  # trees that were saved after so many effects
    trees_at_end: Mapping[Tree, Any]  # after the next call
    listing_at_end: list[str]


def check_crash_states(case: CrashCase, folder: str, effort: Effort, *, seed: int = 0) -> Checked:
    """Record a call, and check the states that crashes may leave of it."""
    rng = random.Random(seed)
    live = os.path.join(folder, "live")
    os.makedirs(live)
    case.prepare(live)
    before = _observe(case, live)
    recorder = RecordingSystem(live, lacks=case.lacks)
    with syscalls.override(recorder):
        case.call(live)
    after = _observe(case, live)
    replay = Replay(recorder.trace)
    _require_complete(replay, live)
    if case.next_call is not None:
        case.next_call(live)
    expected = _Expected(before, after, recorder.acknowledged, _observe(case, live), _listing(live))
    shutil.rmtree(live)
    count = len(recorder.trace.effects)
    states = _states(replay, range(count + 1), effort, rng, returns=True)
    chosen = states if effort.most is None else rng.sample(states, min(effort.most, len(states)))
    state_folder = os.path.join(folder, "state")
    problems = []
    for state in chosen:
        problems += _problems(case, replay.trace, state, expected, state_folder)
    moments = [m for m in range(1, count) if isinstance(replay.trace.effects[m - 1], Names)]
    if effort.kills is not None and effort.kills < len(moments):
        moments = sorted(rng.sample(moments, effort.kills))
    after_kills = 0
    for moment in moments:
        number, more = _check_kill(case, replay, moment, expected, folder, effort, rng)
        after_kills += number
        problems += more
    return Checked(case.name, count, len(states), len(chosen), len(moments), after_kills, problems)


def _check_kill(
    case: CrashCase,
    replay: Replay,
    moment: int,
    expected: _Expected,
    folder: str,
    effort: Effort,
    rng: random.Random,
) -> tuple[int, list[str]]:
    """Kill the process, make the call again, and cut the power in or after that call.

    What the first call has not flushed is still there for the second one, and may still be lost.
    """
    live = os.path.join(folder, "again")
    inodes = write_disk(replay.disk_at(moment), live)
    trace = Trace(
        dict(replay.trace.files), dict(replay.trace.folders), replay.trace.effects[:moment]
    )
    recorder = RecordingSystem(live, trace, inodes, lacks=case.lacks)
    with syscalls.override(recorder):
        refused = _call(case, live)
    again = Replay(trace)
    _require_complete(again, live)
    shutil.rmtree(live)
    saved = {
        tree: (since if since <= moment else sys.maxsize, value)  # may be there, or may not
        for tree, (since, value) in expected.acknowledged.items()
    }
    expected = expected._replace(acknowledged={**saved, **recorder.acknowledged})
    states = _some_states(again, moment, effort.most_after_kills, rng, returns=not refused)
    problems = []
    for state in states:
        for problem in _problems(case, trace, state, expected, os.path.join(folder, "state")):
            problems.append(f"killed after effect {moment}, called again; {problem}")
    return len(states), problems


def _call(case: CrashCase, folder: str) -> bool:
    """Make the call again; return True if it says that all is there already."""
    try:
        case.call(folder)
    except Exception as e:
        if case.refusal is None or not isinstance(e, case.refusal):
            raise
        return True
    return False


def _states(
    replay: Replay, moments: Sequence[int], effort: Effort, rng: random.Random, *, returns: bool
) -> list[_State]:
    """Return the states that differ; `returns` is False if the call ends with an error."""
    seen: dict[object, _State] = {}
    for moment in moments:
        returned = returns and moment == len(replay.trace.effects)
        for lost, left in _losses(replay, moment, effort, rng):
            state = _State(moment, lost, left, returned, replay.disk_at(moment, lost, left))
            seen.setdefault((state.disk.key, returned), state)
    return list(seen.values())


def _some_states(
    replay: Replay, first: int, count: int, rng: random.Random, *, returns: bool
) -> list[_State]:
    """Return states after the first effects: that after the call with everything lost, and others.

    In every second one of these everything is lost, too.
    """
    last = len(replay.trace.effects)
    states = []
    for number in range(count):
        moment = last if number == 0 else rng.randint(first, last)
        names, files = replay.pending_at(moment)
        lost = frozenset(each for each in names if number % 2 == 0 or rng.random() < 0.5)
        left = {file: rng.choice(BYTES_LEFT) for file in files}
        returned = returns and moment == last
        states.append(_State(moment, lost, left, returned, replay.disk_at(moment, lost, left)))
    return states


def _losses(
    replay: Replay, moment: int, effort: Effort, rng: random.Random
) -> Iterator[tuple[frozenset[int], Mapping[int, BytesLeft]]]:
    """Return what a power cut may lose: changes of names, and bytes of files; everything first."""
    names, files = replay.pending_at(moment)
    everything = frozenset(names)
    if len(names) <= effort.all_of:
        subsets = [
            frozenset(each)
            for size in range(len(names), -1, -1)
            for each in itertools.combinations(names, size)
        ]
    else:
        subsets = [everything, frozenset()]
        subsets += [frozenset([each]) for each in names]
        subsets += [everything - {each} for each in names]
        subsets += [frozenset(names[size:]) for size in range(1, len(names))]
        subsets += [
            frozenset(each for each in names if rng.random() < 0.5) for _ in range(effort.samples)
        ]
    for lost in subsets:
        for left in BYTES_LEFT if files else BYTES_LEFT[:1]:
            yield lost, dict.fromkeys(files, left)
        if len(files) > 1:
            yield lost, {file: rng.choice(BYTES_LEFT) for file in files}


def _problems(
    case: CrashCase, trace: Trace, state: _State, expected: _Expected, folder: str
) -> list[str]:
    """Return a line for each thing that does not hold in a state."""
    write_disk(state.disk, folder)
    try:
        problems = [*_wrong_trees(case, folder, state, expected)]
        if not problems:
            problems += _not_completed(case, folder, state, expected)
    finally:
        shutil.rmtree(folder)
    where = f"{case.name}: {_describe(trace, state)}"
    return [f"{where}: {problem}" for problem in problems]


def _wrong_trees(case: CrashCase, folder: str, state: _State, expected: _Expected) -> Iterator[str]:
    for tree in case.trees:
        try:
            value = _read(folder, tree)
        except Exception as e:  # noqa: BLE001  (reported)
            yield f"{tree} does not load: {type(e).__name__}: {e}"
            continue
        before, after = expected.before[tree], expected.after[tree]
        since, saved = expected.acknowledged.get(tree, (state.moment + 1, after))
        must_be_after = state.returned or since <= state.moment
        if after is None and (case.next_call is not None or not state.returned):
            must_be_after = False  # what is deleted may stay until a later call
        allowed = [after] if must_be_after else [after, before, saved]
        if tree.by_orbax and (case.next_call is not None or not state.returned):
            allowed.append(None)  # it is written after the index, and removed before it
        if not any(_same(value, each) for each in allowed):
            yield f"{tree} is " + ("lost" if value is None else "not one of those saved")
    yield from _wrong_verdicts(case, folder)


def _wrong_verdicts(case: CrashCase, folder: str) -> Iterator[str]:
    whole = [tree.path for tree in case.trees if not tree.may_be_damaged and not tree.read]
    for path in dict.fromkeys(os.path.join(folder, each) for each in whole):
        try:
            verification = verify(path)
        except FileNotFoundError:  # nothing is there, which the readers have said too
            continue
        except Exception as e:  # noqa: BLE001  (reported)
            yield f"verify: {type(e).__name__}: {e}"
            continue
        is_stale = _hub_index_is_stale(Path(path)) or bool(missing_for_orbax(path))
        if bool(verification.stale) != is_stale:
            yield f"verify says that {verification.stale} is stale, and {is_stale=}"


_DATA_FILE = re.compile(r"data-[0-9a-f]{16}-\d+-\d+\.safetensors")


def _hub_index_is_stale(path: Path) -> bool:
    """Return True if the indexes of a directory name different files."""
    indexes = [path / "cordwood.json", path / HUGGING_FACE_NAME]
    if not all(index.exists() for index in indexes):
        return False
    ours, hub = [set(_DATA_FILE.findall(index.read_text())) for index in indexes]
    return ours != hub


def _not_completed(
    case: CrashCase, folder: str, state: _State, expected: _Expected
) -> Iterator[str]:
    """Make the call again; return what differs from the contents after a call without a crash."""
    what = "after the same call again"
    try:
        with syscalls.override(LackingSystem(case.lacks)):
            _call(case, folder)
            end = state._replace(returned=True)
            for problem in _wrong_trees(case, folder, end, expected):
                yield f"{what}: {problem}"
            if case.next_call is not None:
                what = "after the next call"
                case.next_call(folder)
    except Exception as e:  # noqa: BLE001  (reported)
        yield f"{what}: {type(e).__name__}: {e}"
        return
    for tree, value in _observe(case, folder).items():
        if not _same(value, expected.trees_at_end[tree]):
            yield f"{what}: {tree} is not what it was to be"
    for problem in _wrong_verdicts(case, folder):
        yield f"{what}: {problem}"
    for path in dict.fromkeys(tree.path for tree in case.trees):
        if _hub_index_is_stale(Path(folder, path)):
            yield f"{what}: the index for the hub of {path} is still stale"
    listing, at_end = _listing(folder), expected.listing_at_end
    if listing != at_end:
        surplus, missing = sorted({*listing} - {*at_end}), sorted({*at_end} - {*listing})
        yield f"{what}: too many {surplus}, missing {missing}"


def _observe(case: CrashCase, folder: str) -> dict[Tree, Any]:
    return {tree: _read(folder, tree) for tree in case.trees}


def _read(folder: str, tree: Tree) -> Any:
    """Return a tree; None if there is none. Raises for a damaged one."""
    path = os.path.join(folder, tree.path)
    if tree.read is not None:
        return tree.read(path)
    if tree.metrics:
        run, step = os.path.split(path)
        return StepReader(run).metrics(int(step))
    if tree.by_hub:
        index = os.path.join(path, HUGGING_FACE_NAME)
        return read_tensors(Path(path)) if os.path.exists(index) else None
    if tree.by_orbax:
        return read_orbax_tree(os.path.join(path, tree.prefix or "."))
    try:
        return load(path, prefix=tree.prefix, to="numpy")
    except (FileNotFoundError, PrefixError):
        return _DAMAGED if tree.may_be_damaged else None
    except CordwoodError:
        if not tree.may_be_damaged:
            raise
        return _DAMAGED


_DAMAGED = "damaged"


def _same(a: Any, b: Any) -> bool:
    return a is b if a is None or b is None else same_tree(a, b)


_LOCK = re.compile(r"\..*\.cordwood-lock")  # a killed process leaves it, and it does no harm


def _listing(folder: str) -> list[str]:
    """Return the paths of all entries, with one id for all saves."""
    paths = {
        os.path.relpath(os.path.join(place, name), folder)
        for place, inner, names in os.walk(folder)
        for name in [*inner, *names]
        if not _LOCK.fullmatch(name)
    }
    return sorted({re.sub(r"data-[0-9a-f]{16}-", "data-ID-", path) for path in paths})


def _require_complete(replay: Replay, folder: str) -> None:
    """Require that the model ends with what is there: no call went past the recorder."""
    disk = replay.disk_at(len(replay.trace.effects))
    real = {
        os.path.relpath(os.path.join(place, name), folder): contents(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    }
    assert {path: data for path, (_, data) in disk.files.items()} == real


def _describe(trace: Trace, state: _State) -> str:
    """Return a state in words."""
    lost = [
        f"{position}: {', '.join(f'{name} -> {inode}' for name, inode in effect.inodes)}"
        for position, effect in enumerate(trace.effects)
        if position in state.lost and isinstance(effect, Names)
    ]
    left = ", ".join(f"{file}: {left}" for file, left in state.bytes_left.items())
    when = "after the call" if state.returned else f"after effect {state.moment}"
    return f"power cut {when}, lost [{'; '.join(lost)}], left of files [{left}]"
