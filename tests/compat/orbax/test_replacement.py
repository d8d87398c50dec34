"""The replacement of Orbax by itself: steps of both, what is better, and what it refuses."""

from __future__ import annotations

import errno
import importlib
import os
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import cordwood as cw
import cordwood.compat.orbax as ocp
from cordwood.errors import StepError, UnsupportedLeafError
from cordwood.storage import syscalls
from tests.children import run_python
from tests.compat.orbax.both import assert_same, quiet, steps_on_disk
from tests.contract import PUBLIC_MODULES, ROOT

pytestmark = quiet


def state() -> dict[str, Any]:
    return {"w": jnp.ones((4, 2)), "t": (np.arange(3),)}


def test_the_import_needs_neither_orbax_nor_jax() -> None:
    loaded = run_python("import cordwood.compat.orbax, sys; print(*sys.modules)").split()
    assert not {"orbax", "etils", "jax", "tensorstore"} & set(loaded)


def test_steps_of_orbax_are_restored_and_followed_by_others(tmp_path: Path) -> None:
    args = orbax.checkpoint.args
    with orbax.checkpoint.CheckpointManager(tmp_path) as orbax_manager:
        orbax_manager.save(1, args=args.StandardSave(state()))
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 1
        assert_same(manager.restore(None, args=ocp.args.StandardRestore(state())), state())
        assert manager.item_metadata(1)["w"].shape == (4, 2)
        assert not manager.save(1, args=ocp.args.StandardSave(state()))
        assert manager.save(2, args=ocp.args.StandardSave(state()))
        assert manager.all_steps() == [1, 2]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"step_prefix": "ckpt"}, "ckpt_100"),
        ({"step_format_fixed_length": 4}, "0100"),
        ({"step_prefix": "weights"}, "weights_100"),
    ],
)
def test_a_run_with_other_names_goes_on_as_the_error_says(
    options: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with orbax.checkpoint.CheckpointManager(
        tmp_path / "run", options=orbax.checkpoint.CheckpointManagerOptions(**options)
    ) as orbax_manager:
        orbax_manager.save(100, args=orbax.checkpoint.args.StandardSave(state()))
    with pytest.raises(TypeError, match=r"leave it out: .* is read, and new steps are") as error:
        ocp.CheckpointManagerOptions(**options)
    command = re.search(r"\(mv (\S+) (\S+)\)", str(error.value))
    assert command is not None
    if "weights" not in name:
        with ocp.CheckpointManager("run") as manager:
            assert manager.save(200, args=ocp.args.StandardSave(state()))
            assert manager.all_steps() == [100, 200]
        assert name in command[1]
    os.rename(f"run/{name}", command[2])
    with ocp.CheckpointManager("run") as manager:
        manager.save(300, args=ocp.args.StandardSave(state()))
        steps = manager.all_steps()
        assert_same(manager.restore(100, args=ocp.args.StandardRestore(state())), state())
    with orbax.checkpoint.CheckpointManager(tmp_path / "run") as orbax_manager:
        assert sorted(orbax_manager.all_steps()) == steps == sorted({100, *steps})
        for step in steps:
            target = orbax.checkpoint.args.StandardRestore(state())
            assert_same(orbax_manager.restore(step, args=target), state())


def test_composites_of_orbax_are_restored(tmp_path: Path) -> None:
    args = orbax.checkpoint.args
    with orbax.checkpoint.CheckpointManager(tmp_path) as orbax_manager:
        orbax_manager.save(
            1,
            args=args.Composite(state=args.StandardSave(state()), meta=args.JsonSave({"lr": 0.5})),
        )
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(1)
        assert sorted(restored) == ["meta", "state"]
        assert restored.meta == {"lr": 0.5}
        target = ocp.args.Composite(state=ocp.args.StandardRestore(state()))
        assert_same(manager.restore(1, args=target).state, state())


def test_steps_of_orbax_count_and_are_never_deleted_by_a_policy(tmp_path: Path) -> None:
    args = orbax.checkpoint.args
    with orbax.checkpoint.CheckpointManager(tmp_path) as orbax_manager:
        for step in (1, 2):
            orbax_manager.save(step, args=args.StandardSave(state()))
    with ocp.CheckpointManager(
        tmp_path, options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as manager:
        manager.save(3, args=ocp.args.StandardSave(state()))
    with orbax.checkpoint.CheckpointManager(tmp_path / "other") as orbax_manager:
        orbax_manager.save(4, args=args.StandardSave(state()))
    (tmp_path / "other" / "4").rename(tmp_path / "4")
    with ocp.CheckpointManager(
        tmp_path, options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as manager:
        manager.save(5, args=ocp.args.StandardSave(state()))
        assert manager.all_steps() == [1, 2, 4, 5]
        manager.delete(4)
        assert manager.all_steps() == [1, 2, 5]


def test_a_step_is_one_of_cordwoods(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(
            1,
            metrics={"loss": 0.5},
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state()), meta=ocp.args.JsonSave({"lr": 0.5})
            ),
        )
    reader = cw.StepReader(tmp_path)
    restored = reader.restore(1, like=state(), prefix="state")
    assert_same(restored.tree, state())
    assert (restored.metrics, restored.extras) == ({"loss": 0.5}, {"meta": {"lr": 0.5}})
    cw.verify(tmp_path / "1")


def test_relative_paths_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ocp.CheckpointManager("run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state()))
        assert manager.directory == tmp_path / "run"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save("one", state())
    assert_same(ocp.PyTreeCheckpointer().restore("one", item=state()), state())


class FullDisk(syscalls.SystemCalls):
    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_step_is_never_the_latest(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state()))
        manager.wait_until_finished()
        with syscalls.override(FullDisk()):
            manager.save(2, args=ocp.args.StandardSave(state()))
            assert manager.latest_step() == 1
        with pytest.raises(OSError, match="No space left"):
            manager.wait_until_finished()
        manager.check_for_errors()  # it was reported
        assert manager.all_steps() == [1]


def test_an_integer_is_not_rounded_in_silence(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"a": np.asarray([0.5])})
        with pytest.raises(ValueError, match=r"a: casting float64 to int32 would change"):
            checkpointer.restore(tmp_path / "tree", {"a": np.zeros(1, np.int32)})


def test_force_replaces_checkpoints_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("precious")
    with pytest.raises(FileExistsError):
        ocp.PyTreeCheckpointer().save(tmp_path / "notes", state(), force=True)
    with ocp.StandardCheckpointer() as checkpointer:
        orbax.checkpoint.PyTreeCheckpointer().save(tmp_path / "old", {"x": np.ones(1)})
        checkpointer.save(tmp_path / "old", state(), force=True)
        assert_same(checkpointer.restore(tmp_path / "old", state()), state())
    assert (tmp_path / "notes" / "a.txt").read_text() == "precious"


def test_force_keeps_a_checkpoint_if_the_tree_is_refused(tmp_path: Path) -> None:
    orbax.checkpoint.PyTreeCheckpointer().save(tmp_path / "old", {"x": np.ones(1)})
    for tree in ({"x": object()}, {"a": {"b": np.ones(1)}, "a.b": np.ones(1)}):
        with pytest.raises(UnsupportedLeafError):
            ocp.PyTreeCheckpointer().save(tmp_path / "old", tree, force=True)
    assert_same(ocp.PyTreeCheckpointer().restore(tmp_path / "old"), {"x": np.ones(1)})


@pytest.mark.parametrize("force", [False, True])
def test_version_1_overwrites_the_newest_step_or_none(force: bool, tmp_path: Path) -> None:
    training = ocp.v1.training
    policy = training.save_decision_policies.FixedIntervalPolicy(10)
    with training.Checkpointer(tmp_path, save_decision_policy=policy) as checkpointer:
        for step in (10, 20):
            checkpointer.save(step, {"w": np.ones(1)})
        checkpointer.save(25, {"w": np.ones(1)}, force=True)
        with pytest.raises(StepError, match="step 10 is not newer than step 25"):
            checkpointer.save(10, {"w": np.zeros(1)}, overwrite=True, force=force)
        with pytest.raises(UnsupportedLeafError):
            checkpointer.save(25, {"w": object()}, overwrite=True, force=force)
        assert steps_on_disk(tmp_path) == [10, 20, 25]
        assert checkpointer.save(25, {"w": np.zeros(1)}, overwrite=True, force=force)
        assert_same(checkpointer.load(25), {"w": np.zeros(1)})


def test_read_only_managers_save_nothing_by_force(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert not manager.save(2, args=ocp.args.StandardSave(state()), force=True)
    assert steps_on_disk(tmp_path) == []


def test_the_name_of_a_single_item_is_refused_among_several(tmp_path: Path) -> None:
    tree = ocp.args.StandardSave(state())
    items = ocp.args.Composite(state=tree, default=tree)
    match = "'default' is the item without a name"
    with ocp.CheckpointManager(tmp_path) as manager, pytest.raises(ValueError, match=match):
        manager.save(1, args=items)
    assert steps_on_disk(tmp_path) == []


def test_the_shape_of_a_number_is_a_shape(tmp_path: Path) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"x": np.ones(3)})
        requests = {"x": ocp.ArrayRestoreArgs(restore_type=np.ndarray, shape=())}
        with pytest.raises(ValueError, match=r"x: the stored shape is \(3,\), the requested one"):
            checkpointer.restore(tmp_path / "tree", restore_args=requests)


def test_keys_of_one_text_are_refused(tmp_path: Path) -> None:
    cw.save(tmp_path / "tree", {"a": {1: np.ones(1), "1": np.zeros(1)}})
    with pytest.raises(ValueError, match="have the same name for Orbax"):
        ocp.PyTreeCheckpointer().restore(tmp_path / "tree")


UNTYPED: Any = ocp  # for calls that a type checker refuses


class TextHandler(ocp.CheckpointHandler):
    def save(self, directory: Path, args: Any) -> None:
        (directory / "sub").mkdir()
        (directory / "sub" / "text.txt").write_text(args.item)

    def restore(self, directory: Path, args: Any = None) -> str:
        return (directory / "sub" / "text.txt").read_text()


class TextArgs(ocp.args.CheckpointArgs):
    def __init__(self, item: str = "") -> None:
        self.item = item


@pytest.mark.parametrize("registered", [False, True])
def test_a_handler_of_the_user_stores_files_in_the_step(registered: bool, tmp_path: Path) -> None:
    class Args(TextArgs):
        pass

    if registered:
        ocp.args.register_with_handler(TextHandler, for_save=True, for_restore=True)(Args)
    handlers = None if registered else {"text": TextHandler()}
    with ocp.CheckpointManager(tmp_path, item_handlers=handlers) as manager:
        items = ocp.args.Composite(text=Args("hello"), state=ocp.args.StandardSave(state()))
        manager.save(1, args=items)
        restored = manager.restore(1, args=ocp.args.Composite(text=Args()))
        assert restored.text == "hello"
    assert steps_on_disk(tmp_path) == [1]


@pytest.mark.parametrize("base", ["StandardCheckpointHandler", "PyTreeCheckpointHandler"])
def test_the_methods_of_a_derived_handler_are_called(base: str, tmp_path: Path) -> None:
    class Whole(getattr(ocp, base)):  # type: ignore[misc]
        save, restore = TextHandler.save, TextHandler.restore

    class Half(getattr(ocp, base)):  # type: ignore[misc]
        def save(self, directory: Path, args: Any) -> None:
            super().save(directory, args)

    ocp.Checkpointer(Whole()).save(tmp_path / "text", args=TextArgs("hello"))
    assert ocp.Checkpointer(Whole()).restore(tmp_path / "text", args=TextArgs()) == "hello"
    with pytest.raises(NotImplementedError, match=r"Half: save\(directory, args\) is not written"):
        ocp.Checkpointer(Half()).save(tmp_path / "half", args=TextArgs("hello"))


class Counter:
    """An iterator with a state, as Grain's."""

    def __init__(self) -> None:
        self.position = 0

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class CheckpointSave:
    def __init__(self, item: Any) -> None:
        self.item = item


class CheckpointRestore(CheckpointSave):
    pass


def test_iterators_continue(tmp_path: Path) -> None:
    counter = Counter()
    counter.position = 7
    with ocp.CheckpointManager(tmp_path) as manager:
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state()), data=CheckpointSave(counter)
        )
        manager.save(1, args=items)
        restored = manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(Counter())))
    assert restored.data.position == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UNTYPED.CheckpointManagerOptions(step_prefix="ckpt"), "named by their numbers"),
        (lambda: UNTYPED.CheckpointManagerOptions(max_to_kep=3), "did you mean 'max_to_keep'"),
        (lambda: UNTYPED.CheckpointManagerOptions(todelete_subdir="x"), "cordwood copy"),
        (lambda: UNTYPED.CheckpointManager("run", metadata={"a": 1}), "args.JsonSave"),
        (lambda: UNTYPED.CheckpointManager("run", handler_registry=1), "item_handlers="),
        (
            lambda: UNTYPED.CheckpointManager("run", item_handlers={"a": object()}),
            "object has no save and no restore",
        ),
    ],
)
def test_what_is_not_taken_says_what_to_do(
    call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message):
        call()


def test_custom_metadata_becomes_an_item(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        with pytest.raises(TypeError, match=r"meta=args\.JsonSave"):
            manager.save(1, args=ocp.args.StandardSave(state()), custom_metadata={"a": 1})
        args = ocp.args
        items = args.Composite(state=args.StandardSave(state()), meta=args.JsonSave({"a": 1}))
        manager.save(1, args=items)
        assert manager.restore(1).meta == {"a": 1}


def test_transforms_with_rules_are_refused(tmp_path: Path) -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(tmp_path / "tree", state())
    with pytest.raises(ValueError, match=r"rename="):
        checkpointer.restore(tmp_path / "tree", item=state(), transforms={"w": object()})


def test_names_of_orbax_that_are_not_there_say_what_to_do() -> None:
    with pytest.raises(AttributeError, match="item_handlers"):
        ocp.CheckpointHandlerRegistry  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ocp.nothing  # noqa: B018


def test_the_reference_lists_all_names() -> None:
    page = (ROOT / "docs" / "reference" / "compat.md").read_text()
    for module in [name for name in PUBLIC_MODULES if name.startswith("cordwood.compat.orbax")]:
        names = getattr(importlib.import_module(module), "__all__", [])
        row = ", ".join(f"`{name}`" for name in sorted(names))
        assert not names or f"| `{module}` | {row} |" in page, module


def test_the_names_of_the_census_are_there() -> None:
    for name in ocp.__all__:
        assert name == "StepAlreadyExistsError" or hasattr(orbax.checkpoint, name), name
    for module in ("args", "checkpoint_managers", "checkpoint_utils", "utils", "handlers"):
        peer = getattr(orbax.checkpoint, module)
        missing = [name for name in getattr(ocp, module).__all__ if not hasattr(peer, name)]
        assert set(missing) <= {"PreserveAll", "AsyncCheckpointHandler", "CheckpointHandler"}
