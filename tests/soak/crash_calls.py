"""The calls that change a disk, for the checker of crash states."""

from __future__ import annotations

import os
import shutil
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

import cordwood as cw
from cordwood.compat.orbax import PyTreeCheckpointer
from cordwood.errors import NotACheckpointError, StepError
from cordwood.manager.orbax_indexes import add_orbax_index, steps_to_index
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage.locations import LocalPath
from tests.faults.crash_states import CrashCase, Tree, acknowledge
from tests.faults.scenario import same_tree
from tests.soak.orbax_files import missing_for_orbax

_FILES = ("m.safetensors", "m.msgpack", "m.msgpack.zst", "m.msgpack.gz")
_NO_EXCHANGE = frozenset({"exchange"})
_NO_LINKS = frozenset({"link"})
_DEAD_SAVE = "0123456789abcdef"


def crash_cases() -> list[CrashCase]:
    """Return every call that is checked."""
    return [
        *_saves(),
        *_managers(),
        *_deletions(),
        *_removals(),
        *_collections(),
        *_copies(),
        *_conversions(),
        *_publications(),
        *_for_orbax(),
    ]


def tree_of(step: int) -> dict[str, Any]:
    """Return a tree of which one array changes with each step, and one that never does."""
    return {
        "frozen": np.arange(600, dtype=np.float32),
        "w": {"a": np.full((3, 5), step, np.float32), "b": np.arange(step + 2)},
    }


def _saves() -> list[CrashCase]:
    cases = [_save(f"save {name}", name) for name in _FILES]
    cases += [
        _save("save m.safetensors, the first, to a new directory", "new/m.safetensors", first=True),
        _save("save of 9 MB to m.safetensors", "m.safetensors", large=True),
        _save("save to packs", "d", hub=True),
        _save("save to packs, in shards", "d", hub=True, max_shard_bytes=1000),
        _save("save to packs, the first", "d", hub=True, first=True),
        _save("save to packs, the first, to a new directory", "new/in/d", hub=True, first=True),
        _save("save to zarr", "d", format="zarr"),
        _save("save to zarr, compressed", "d", format="zarr", compression="zstd"),
        _save("save to zarr, the first", "d", format="zarr", first=True),
        _save("save to zarr, without exchange", "d", lacks=_NO_EXCHANGE, format="zarr"),
        _save_beside("packs"),
        _save_beside("zarr"),
        _save_beside("zarr", lacks=_NO_LINKS),
        _save_async("m.msgpack"),
        _save_async("d", hub=True),
        _serialize_leaves(),
        _save_for_hub(None),
        _save_for_hub(1000),
    ]
    return cases


def _save(
    name: str,
    path: str,
    *,
    hub: bool = False,
    first: bool = False,
    large: bool = False,
    lacks: frozenset[str] = frozenset(),
    **options: Any,
) -> CrashCase:
    more = {"large": np.arange(9 << 18, dtype=np.float32)} if large else {}

    def prepare(root: str) -> None:
        if not first:
            cw.save(f"{root}/{path}", tree_of(1) | more, **options)

    def call(root: str) -> None:
        cw.save(f"{root}/{path}", tree_of(2) | more, **options)

    return CrashCase(name, prepare, call, _trees(path, hub=hub), lacks, is_large=large)


def _trees(*paths: str, hub: bool = False) -> tuple[Tree, ...]:
    by_hub = [Tree(path, by_hub=True) for path in paths if hub]
    return (*map(Tree, paths), *by_hub)


def _save_beside(format: str, *, lacks: frozenset[str] = frozenset()) -> CrashCase:
    def prepare(root: str) -> None:
        for number, prefix in enumerate(("ema", "model")):
            cw.save(f"{root}/d", tree_of(number), prefix=prefix, format=format)

    def call(root: str) -> None:
        cw.save(f"{root}/d", tree_of(5), prefix="model", format=format)

    name = f"save a tree beside another to {format}{', without links' if lacks else ''}"
    return CrashCase(name, prepare, call, (Tree("d", "ema"), Tree("d", "model")), lacks)


def _save_async(path: str, *, hub: bool = False) -> CrashCase:
    def prepare(root: str) -> None:
        cw.save(f"{root}/{path}", tree_of(1))

    def call(root: str) -> None:
        cw.save_async(f"{root}/{path}", tree_of(2)).wait()

    return CrashCase(f"save_async to {path}", prepare, call, _trees(path, hub=hub))


def _serialize_leaves() -> CrashCase:
    def prepare(root: str) -> None:
        cw.tree_serialize_leaves(f"{root}/d", tree_of(1))

    def call(root: str) -> None:
        cw.tree_serialize_leaves(f"{root}/d", tree_of(2))

    return CrashCase("tree_serialize_leaves", prepare, call, _trees("d"))


def _save_for_hub(max_shard_bytes: int | None) -> CrashCase:
    def call(root: str) -> None:
        path = f"{root}/new/hub"
        cw.save(path, tree_of(2), format="hugging_face", max_shard_bytes=max_shard_bytes)

    name = f"save to the hub's layout{'' if max_shard_bytes is None else ', in shards'}"
    return CrashCase(name, _nothing, call, _trees("new/hub"), refusal=NotACheckpointError)


def _run(root: str, steps: range, **options: Any) -> None:
    """Save steps after the one that a run continues from, with links to what does not change."""
    with cw.CheckpointManager(f"{root}/run", background=False, **options) as manager:
        restored = _restore(manager)
        for step in steps:
            if restored is None or step > restored.step:
                items = {"ema": tree_of(step + 1)}
                manager.save(step, tree_of(step), metrics={"loss": 1.0}, items=items)
                acknowledge(root, *_steps(step))


def _run_mirrored(root: str, steps: range) -> None:
    """Save steps after the one that a run continues from, and wait until each is mirrored."""
    mirror = cw.Mirror(f"{root}/mirror", keep=2)
    with cw.CheckpointManager(f"{root}/run", background=False, keep=1, mirror=mirror) as manager:
        restored = _restore(manager)
        manager.wait()
        for step in steps:
            if restored is None or step > restored.step:
                manager.save(step, tree_of(step))
                acknowledge(root, *_trees(f"run/{step}"))
                manager.wait()
                assert manager.mirrored == step
                acknowledge(root, *_trees(f"mirror/{step}"))
        assert not manager.problems, manager.problems


def _steps(*steps: int, run: str = "run") -> tuple[Tree, ...]:
    paths = [f"{run}/{step}" for step in steps]
    return tuple(tree for path in paths for tree in (Tree(path, ""), Tree(path, "ema")))


def _managers() -> list[CrashCase]:
    def prepare(root: str) -> None:
        _run(root, range(1, 4))

    def call(root: str) -> None:
        _run(root, range(4, 6), keep=2)

    def next_call(root: str) -> None:
        _run(root, range(6, 7), keep=2)

    def first_steps(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", background=False, keep=2) as manager:
            for step in _steps_left(manager):
                manager.save(step, tree_of(step))
                acknowledge(root, *_trees(f"run/{step}", hub=True))

    def in_background(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", keep=2) as manager:
            for step in _steps_left(manager):
                pending = manager.save(step, tree_of(step))
                assert pending is not None
                pending.wait()
                acknowledge(root, *_trees(f"run/{step}", hub=True))

    def fourth_step(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", keep=2) as manager:
            manager.save(4, tree_of(4))

    def prepare_damage(root: str) -> None:
        prepare(root)
        with open(f"{root}/run/3/cordwood.json", "wb") as file:
            file.write(b"damaged")

    def over_damage(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", background=False) as manager:
            manager.save(3, tree_of(30), items={"ema": tree_of(31)})
            acknowledge(root, *saved_again)

    def after_damage(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", background=False) as manager:
            manager.save(4, tree_of(4))

    def add_metrics(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager:
            manager.add_metrics(2, {"loss": 0.5, "accuracy": 0.25}, overwrite=True)

    def prepare_mirror(root: str) -> None:
        _run_mirrored(root, range(1, 4))

    def with_mirror(root: str) -> None:
        _run_mirrored(root, range(4, 6))

    def next_with_mirror(root: str) -> None:
        _run_mirrored(root, range(6, 7))

    saved_again = tuple(each._replace(may_be_damaged=True) for each in _steps(3))
    of_metrics = tuple(Tree(f"run/{step}", metrics=True) for step in (1, 2))
    trees = _steps(1, 2, 3, 4, 5)
    case = CrashCase("manager.save with links", prepare, call, trees, next_call=next_call)
    by_hub = _trees("run/1", "run/2", "run/3", hub=True)
    first = CrashCase("", _nothing, first_steps, by_hub, next_call=fourth_step)
    return [
        case,
        case._replace(name="manager.save, without links", lacks=_NO_LINKS),
        first._replace(name="manager.save, the first steps"),
        first._replace(name="manager.save, in the background", call=in_background),
        CrashCase(
            "manager.save over a damaged step, which is set aside",
            prepare_damage,
            over_damage,
            (*_steps(1, 2), *saved_again),
            refusal=StepError,
            next_call=after_damage,
        ),
        CrashCase(
            "manager.save with a mirror",
            prepare_mirror,
            with_mirror,
            _trees(*(f"{place}/{step}" for place in ("run", "mirror") for step in range(1, 6))),
            next_call=next_with_mirror,
        ),
        CrashCase("manager.add_metrics", prepare, add_metrics, (*_steps(1, 2, 3), *of_metrics)),
    ]


def _restore(manager: cw.CheckpointManager) -> Any:
    """Restore the newest step; steps that a killed save left are passed over with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return manager.restore()


def _steps_left(manager: cw.CheckpointManager) -> range:
    """Return the steps up to 3 that a loop saves which continues from the newest step."""
    restored = _restore(manager)
    return range(1 if restored is None else restored.step + 1, 4)


def _nothing(root: str) -> None:
    """Prepare nothing."""


def _deletions() -> list[CrashCase]:
    def delete(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager, suppress(FileNotFoundError):
            manager.delete(2)

    def delete_after(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager:
            manager.delete_after(1)

    def prepare(root: str) -> None:
        _run(root, range(1, 4))

    def prepare_notes(root: str) -> None:
        prepare(root)
        with open(f"{root}/run/2/notes", "wb") as file:
            file.write(b"mine")

    def delete_beside_notes(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager:
            try:
                manager.delete_after(1)
            except StepError as e:
                assert "run/2: it holds notes, which cordwood did not write" in str(e)  # noqa: PT017
            assert manager.steps() == [1, 2]
        assert os.path.exists(f"{root}/run/2/notes")

    def save_beside_notes(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run", background=False, keep=1) as manager:
            manager.save(4, tree_of(4))
        assert os.path.exists(f"{root}/run/2/notes")

    def next_beside_notes(root: str) -> None:
        _run(root, range(5, 6), keep=1)
        assert os.listdir(f"{root}/run/2") == ["notes"]

    return [
        CrashCase("manager.delete", prepare, delete, _steps(1, 2, 3)),
        CrashCase("manager.delete_after", prepare, delete_after, _steps(1, 2, 3)),
        CrashCase(
            "manager.delete_after beside a user's file",
            prepare_notes,
            delete_beside_notes,
            _steps(1, 2, 3),
        ),
        CrashCase(
            "retention beside a user's file",
            prepare_notes,
            save_beside_notes,
            (*_steps(1, 2, 3), Tree("run/4")),
            refusal=StepError,
            next_call=next_beside_notes,
        ),
    ]


def _removals() -> list[CrashCase]:
    def prepare(root: str) -> None:
        _run(root, range(1, 3))
        cw.save(f"{root}/z", tree_of(1), format="zarr")
        cw.save(f"{root}/m.msgpack", tree_of(1))

    trees = (*_steps(1, 2), Tree("z"), Tree("m.msgpack"))
    return [
        CrashCase(f"rm of {what}", prepare, partial(_remove, path), trees)
        for what, path in {
            "a step": "run/1",
            "a run": "run",
            "the zarr layout": "z",
            "a file": "m.msgpack",
        }.items()
    ]


def _remove(path: str, root: str) -> None:
    with suppress(FileNotFoundError):
        remove(plan_removal(f"{root}/{path}"))


def _collections() -> list[CrashCase]:
    def prepare(root: str) -> None:
        cw.save(f"{root}/d", tree_of(1))
        (pack,) = [name for name in os.listdir(f"{root}/d") if name.startswith("data-")]
        kept = f"{root}/kept"
        os.makedirs(kept)
        for name in (pack, "model.safetensors.index.json"):
            os.link(f"{root}/d/{name}", f"{kept}/{name}")
        cw.save(f"{root}/d", tree_of(2))
        for name in os.listdir(kept):  # as a save leaves them that is killed at its end
            os.replace(f"{kept}/{name}", f"{root}/d/{name}")
        os.rmdir(kept)
        for name in (
            f"data-{_DEAD_SAVE}-0-0.safetensors",
            f".cordwood.json.cordwood-{_DEAD_SAVE}.tmp",
        ):
            with open(f"{root}/d/{name}", "wb") as file:
                file.write(b"of a save that was killed")
        cw.save(f"{root}/z", tree_of(1), format="zarr")
        shutil.copytree(f"{root}/z", f"{root}/.z.cordwood-{_DEAD_SAVE}.stage")

    def call(root: str) -> None:
        cw.gc(f"{root}/d")
        cw.gc(f"{root}/z")

    return [CrashCase("gc", prepare, call, (*_trees("d", hub=True), Tree("z")))]


def _copies() -> list[CrashCase]:
    def prepare(root: str) -> None:
        cw.save(f"{root}/d", tree_of(1), max_shard_bytes=1000)
        cw.save(f"{root}/m.safetensors", tree_of(1))
        _run(root, range(1, 4))

    cases = [
        CrashCase(
            "copy of a checkpoint",
            prepare,
            lambda root: cw.copy(f"{root}/d", f"{root}/to"),
            _trees("d", "to", hub=True),
        ),
        CrashCase(
            "copy of a file",
            prepare,
            lambda root: cw.copy(f"{root}/m.safetensors", f"{root}/to/m.safetensors"),
            _trees("m.safetensors", "to/m.safetensors"),
        ),
        CrashCase(
            "copy of a step",
            prepare,
            lambda root: cw.copy(f"{root}/run/3", f"{root}/to/3"),
            _steps(3) + _steps(3, run="to"),
        ),
        CrashCase(
            "copy of a run with links",
            prepare,
            lambda root: cw.copy(f"{root}/run", f"{root}/to"),
            _steps(1, 2, 3) + _steps(1, 2, 3, run="to"),
        ),
        CrashCase(
            "copy of a run, without links",
            prepare,
            lambda root: cw.copy(f"{root}/run", f"{root}/to"),
            _steps(1, 2, 3) + _steps(1, 2, 3, run="to"),
            _NO_LINKS,
        ),
    ]
    # A power cut may bring back a temporary file, which a copy with nothing left to write ignores.
    return [case._replace(next_call=lambda root: cw.gc(f"{root}/to")) for case in cases]


def _conversions() -> list[CrashCase]:
    cases = [_convert(name) for name in _FILES]
    cases += [_convert("d"), _convert("d", format="zarr"), _convert_trees("packs")]
    cases += [_convert_trees("zarr")]
    cases += [_export("hugging_face"), _export("hugging_face", max_shard_bytes=1000)]
    return [*cases, _export("orbax")]


def _convert(path: str, **options: Any) -> CrashCase:
    def prepare(root: str) -> None:
        cw.save(f"{root}/source.safetensors", tree_of(2))
        cw.save(f"{root}/{path}", tree_of(1), **options)

    def call(root: str) -> None:
        cw.convert(f"{root}/source.safetensors", f"{root}/{path}", overwrite=True, **options)

    name = f"convert to {options.get('format', path)}"
    return CrashCase(name, prepare, call, _trees("source.safetensors", path))


def _convert_trees(format: str) -> CrashCase:
    def prepare(root: str) -> None:
        for number, prefix in enumerate(("ema", "model")):
            cw.save(f"{root}/source", tree_of(number), prefix=prefix)

    def call(root: str) -> None:
        cw.convert(f"{root}/source", f"{root}/d", format=format, overwrite=True)

    trees = tuple(Tree(path, prefix) for path in ("source", "d") for prefix in ("ema", "model"))
    return CrashCase(f"convert two trees to {format}", prepare, call, trees)


def _export(format: str, **options: Any) -> CrashCase:
    def prepare(root: str) -> None:
        cw.save(f"{root}/source.safetensors", tree_of(2))

    def call(root: str) -> None:
        cw.convert(f"{root}/source.safetensors", f"{root}/new", format=format, **options)

    name = f"convert to {format}{', in shards' if options else ''}"
    trees = _trees("source.safetensors", "new")
    return CrashCase(name, prepare, call, trees, refusal=NotACheckpointError)


def _publications() -> list[CrashCase]:
    def publish(root: str, **options: Any) -> None:
        publisher = cw.WeightPublisher(f"{root}/run", full_every=2, **options)
        for version in range((_newest_version(root) or 0) + 1, 5):
            publisher.publish(version, _version(version)).wait()
            acknowledge(root, followed, *versions[:version])

    def publish_and_remove(root: str) -> None:
        publish(root, keep=1)

    def next_call(root: str) -> None:
        cw.WeightPublisher(f"{root}/run", keep=1).publish(5, _version(5)).wait()

    followed = Tree("run", read=_follow)
    # Not of the last version: a second call that has none to publish makes nothing durable.
    versions = [Tree(f"run/{version}", read=_is_whole) for version in range(1, 4)]
    case = CrashCase("publish", _nothing, publish, (*versions, followed), next_call=next_call)
    return [
        case,
        case._replace(
            name="publish, and remove old versions", call=publish_and_remove, trees=(followed,)
        ),
    ]


def _is_whole(path: str) -> bool | None:
    """Return True for a checkpoint without damage; None for none."""
    try:
        return not cw.verify(path).unverified_bytes
    except FileNotFoundError:
        return None


def _version(number: int) -> dict[str, Any]:
    weights = np.arange(600, dtype=np.float32)
    weights[: number * 5] += number
    return {"w": weights, "version": number}


def _newest_version(root: str) -> int | None:
    return cw.WeightFollower(f"{root}/run").newest()


def _follow(path: str) -> bool | None:
    """Return True if a follower gets exactly a version that was published; None for none."""
    follower = cw.WeightFollower(path)
    try:
        tree = follower.update()
    except FileNotFoundError:
        return None
    return same_tree(tree, _version(follower.version or 0))


def _steps_are_whole_for_orbax(run: str) -> bool | None:
    """Return True if all directories that Orbax takes for steps are whole; None without any."""
    steps = [name for name in os.listdir(run) if name.isdecimal()] if os.path.isdir(run) else []
    if not steps:
        return None
    return not any(
        missing_for_orbax(f"{run}/{step}") or not os.path.exists(f"{run}/{step}/commit_success.txt")
        for step in steps
    )


def _for_orbax() -> list[CrashCase]:
    def save(root: str, step: int, orbax: bool | str) -> None:
        cw.save(f"{root}/d", tree_of(step), orbax=orbax)

    def run(root: str, steps: range, **options: Any) -> None:
        with cw.CheckpointManager(f"{root}/run", background=False, **options) as manager:
            restored = _restore(manager)
            for step in steps:
                if restored is None or step > restored.step:
                    manager.save(step, tree_of(step), metrics={"loss": 1.0}, extras={"epoch": 1})
                    acknowledge(root, Tree(f"run/{step}"))

    def prepare(root: str) -> None:
        run(root, range(1, 4), orbax=True)

    def prepare_without(root: str) -> None:
        run(root, range(1, 4))

    def index_all(root: str) -> None:
        for step in steps_to_index(LocalPath(f"{root}/run")):
            add_orbax_index(step, None)

    def add_metrics(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager:
            manager.add_metrics(2, {"loss": 0.5}, overwrite=True)

    def delete(root: str) -> None:
        with cw.CheckpointManager(f"{root}/run") as manager, suppress(FileNotFoundError):
            manager.delete(2)

    def prepare_notes(root: str) -> None:
        prepare(root)
        with open(f"{root}/run/2/default/notes", "wb") as file:
            file.write(b"mine")

    def save_beside_notes(root: str) -> None:
        run(root, range(4, 5), keep=1, orbax=True)
        assert os.path.exists(f"{root}/run/2/default/notes")

    def next_beside_notes(root: str) -> None:
        run(root, range(5, 6), keep=1, orbax=True)
        assert os.listdir(f"{root}/run/2/default") == ["notes"]

    def prepare_missing(root: str) -> None:
        save(root, 1, "state")
        shutil.rmtree(f"{root}/d/state")

    def prepare_plain(root: str) -> None:
        cw.save(f"{root}/d", tree_of(1), format="orbax")

    def force(root: str) -> None:
        PyTreeCheckpointer().save(f"{root}/d", tree_of(2), force=True)

    def of_steps(*steps: int) -> tuple[Tree, ...]:
        paths = [f"run/{step}" for step in steps]
        return tuple(
            tree for path in paths for tree in (Tree(path), Tree(path, "default", by_orbax=True))
        )

    def in_place(prefix: str | None) -> tuple[Tree, ...]:
        return Tree("d"), Tree("d", prefix, by_orbax=True)

    def case(name: str, *arguments: Any, **options: Any) -> CrashCase:
        return CrashCase(f"orbax: {name}", *arguments, **options)

    whole_for_orbax = Tree("run", read=_steps_are_whole_for_orbax)
    first, second = partial(save, step=1), partial(save, step=2)
    return [
        case("save, the first", _nothing, partial(second, orbax=True), in_place(None)),
        case("save", partial(first, orbax=True), partial(second, orbax=True), in_place(None)),
        case(
            "save with an item",
            partial(first, orbax="state"),
            partial(second, orbax="state"),
            in_place("state"),
        ),
        case(
            "save without it",
            partial(first, orbax=True),
            partial(second, orbax=False),
            in_place(None),
        ),
        case(
            "manager.save with links",
            prepare,
            partial(run, steps=range(4, 6), keep=2, orbax=True),
            (*of_steps(1, 2, 3, 4, 5), whole_for_orbax),
            next_call=partial(run, steps=range(6, 7), keep=2, orbax=True),
        ),
        case(
            "manager.save, the first steps",
            _nothing,
            partial(run, steps=range(1, 3), orbax=True),
            (*of_steps(1, 2), whole_for_orbax),
            next_call=partial(run, steps=range(3, 4), orbax=True),
        ),
        case("manager.add_metrics", prepare, add_metrics, of_steps(1, 2, 3)),
        case("manager.delete", prepare, delete, of_steps(1, 2, 3)),
        case(
            "retention beside a user's file",
            prepare_notes,
            save_beside_notes,
            of_steps(1, 2, 3, 4),
            next_call=next_beside_notes,
        ),
        case("rm of a run", prepare, partial(_remove, "run"), of_steps(1, 2, 3)),
        case("index of a run", prepare_without, index_all, of_steps(1, 2, 3)),
        case("force=True over a checkpoint of Orbax", prepare_plain, force, (Tree("d"),)),
        case(
            "force=True over a checkpoint of Orbax, without exchange",
            prepare_plain,
            force,
            (Tree("d"),),
            _NO_EXCHANGE,
        ),
        case("gc", prepare_missing, lambda root: cw.gc(f"{root}/d"), in_place("state")),
        case(
            "copy",
            partial(first, orbax="state"),
            lambda root: cw.copy(f"{root}/d", f"{root}/copy"),
            (*in_place("state"), Tree("copy"), Tree("copy", "state", by_orbax=True)),
        ),
    ]
