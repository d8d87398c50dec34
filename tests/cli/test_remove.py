"""`cordwood rm` removes exactly the checkpoint or run that was named and confirmed, of any tool."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import flax.serialization
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import NotACheckpointError
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage import syscalls
from tests.cli.conftest import Run
from tests.manager.test_foreign_steps import save_with_eformer, save_with_orbax
from tests.storage.conformance import FolderFiles
from tests.storage.stores import StoredObjects, new_url

TREE = {"w": np.arange(4.0), "b": np.ones(3)}


def manager_run(root: str) -> None:
    with CheckpointManager(root) as manager:
        for step in (1, 2):
            manager.save(step, {**TREE, "step": step})


def orbax_run(root: Path) -> None:
    save_with_orbax(root, [1, 2])


def eformer_run(root: Path) -> None:
    save_with_eformer(root, [1, 2])


def flax_run(root: Path) -> None:
    root.mkdir()
    for step in (1, 2):
        (root / f"checkpoint_{step}").write_bytes(flax.serialization.to_bytes(TREE))


def zarr_run(root: Path) -> None:
    for step in (1, 2):
        cordwood.save(root / f"step_{step}", TREE, format="zarr")


def hub_run(root: Path) -> None:
    for step in (1, 2):
        cordwood.save(root / "source", TREE)
        cordwood.convert(root / "source", root / f"checkpoint-{step}", format="hugging_face")
        shutil.rmtree(root / "source")
        (root / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")


def files_run(root: Path) -> None:
    root.mkdir()
    for step in (1, 2):
        cordwood.save(root / f"step_{step}.safetensors", TREE)


# Of each tool how it writes a run, and the name of the first step.
TOOLS: dict[str, tuple[Callable[[Path], None], str]] = {
    "manager": (lambda root: manager_run(str(root)), "1"),
    "Orbax": (orbax_run, "1"),
    "eFormer": (eformer_run, "run-1"),
    "Flax": (flax_run, "checkpoint_1"),
    "zarr": (zarr_run, "step_1"),
    "hub": (hub_run, "checkpoint-1"),
    "files": (files_run, "step_1.safetensors"),
}


@pytest.fixture(params=TOOLS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Return a directory with a run, and other things beside it, and the name of its first step."""
    write, name = TOOLS[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        write(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    return tmp_path, name


def contents(folder: Path) -> dict[str, bytes]:
    return dict(FolderFiles(folder))


def test_a_step_is_removed_once_it_is_confirmed(
    run: Run, made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = made
    before = contents(folder)
    step = folder / "run" / name
    code, out, _ = run("rm", step, "--dry-run")
    assert code == 0
    assert out.startswith(f"{step}: ")
    assert "would be removed" in out
    for answer, code in (("n\n", 1), ("", 1)):
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _, text=answer: text)
        assert run("rm", step)[0] == code
    assert contents(folder) == before
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "y")
    assert run("rm", step)[0] == 0
    rest = {key: data for key, data in before.items() if not f"{key}/".startswith(f"run/{name}/")}
    assert contents(folder) == rest
    assert not step.exists()
    assert not [each for each in folder.rglob("*") if ".cordwood-" in each.name]


def test_a_run_is_removed_with_all_its_steps(run: Run, made: tuple[Path, str]) -> None:
    folder, _ = made
    code, out, _ = run("rm", folder / "run", "--yes", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["format"] == "steps"
    assert len(answer["steps"]) == 2
    assert answer["files"] > 1
    assert answer["removed"]
    assert sorted(path.name for path in folder.iterdir()) == ["other"]


@pytest.mark.parametrize("place", ["notes", "more/notes", "42/7/cordwood.json"])
def test_nothing_is_removed_where_something_else_lies_inside(
    run: Run, made: tuple[Path, str], place: str
) -> None:
    folder, name = made
    root = folder / "run"
    if (root / name).is_dir():
        FolderFiles(root / name)[place] = b"mine"
        before = contents(folder)
        for path in (root / name, root):
            code, _, err = run("rm", path, "--yes")
            assert code == 3
            # With steps inside, what it is at all is another question.
            assert place.partition("/")[0] in err or (path == root and name in err)
            assert contents(folder) == before
        (root / name / place).unlink()
    FolderFiles(root)[f"9{place}"] = b"mine"
    before = contents(folder)
    code, _, err = run("rm", root, "--yes")
    assert code == 3
    assert f"9{place}".partition("/")[0] in err
    assert contents(folder) == before


@pytest.mark.parametrize(
    "name", ["mine.safetensors", "README.md", "LICENSE", "a-00001-of-00001.safetensors"]
)
@pytest.mark.parametrize("has_index", [True, False])
def test_what_no_index_names_beside_the_weights_of_a_hub_checkpoint_is_somebody_elses(
    run: Run, tmp_path: Path, name: str, has_index: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for each in weights:
        cordwood.save(model / each, {each: np.ones(2)})
    (model / "config.json").write_text("{}")
    if has_index:
        index = {"metadata": {}, "weight_map": {each: each for each in weights}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    if name.endswith(".safetensors"):
        cordwood.save(model / name, TREE)
    else:
        (model / name).write_text("mine")
    before = contents(tmp_path)
    code, _, err = run("rm", model, "--yes")
    assert code == 3
    assert name in err or "files of 2 checkpoints" in err
    assert contents(tmp_path) == before
    (model / name).unlink()
    assert run("rm", model, "--yes").code == 0
    assert not list(tmp_path.iterdir())


def test_files_that_an_index_names_belong_to_it_under_any_name(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    cordwood.save(model / "weights.safetensors", {"w": np.ones(2)})
    index = {"metadata": {}, "weight_map": {"w": "weights.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run("rm", model, "--yes").code == 0
    assert not model.exists()


def test_what_is_no_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello, these are notes")
    (tmp_path / "empty").mkdir()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "1.tex").write_text("x")
    cordwood.save(tmp_path / "a", TREE)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "b").mkdir()
    cordwood.save(tmp_path / "b" / "1", TREE)
    (tmp_path / "b" / "1" / "more").symlink_to(tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    for name in ("notes.txt", "empty", "thesis", "link", "nothing", "b/1", "b", "."):
        code, out, err = run("rm", tmp_path / name, "--yes")
        assert (code, out) == (3, ""), name
        assert err
    assert "it is a symbolic link: name" in run("rm", tmp_path / "link", "--yes").err
    assert "more: links" in run("rm", tmp_path / "b/1", "--yes").err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unfinished_save_can_be_removed(run: Run, tmp_path: Path) -> None:
    FolderFiles(tmp_path)[f"7/data-{'0' * 16}-0-0.safetensors"] = b"dead"
    code, out, _ = run("rm", tmp_path / "7", "--yes")
    assert code == 0
    assert "an unfinished save of cordwood, 1 file, 4 B: removed" in out
    assert list(tmp_path.iterdir()) == []


def test_what_interrupted_calls_have_left_in_a_run_goes_with_it(run: Run, tmp_path: Path) -> None:
    manager_run(str(tmp_path / "run"))
    files = FolderFiles(tmp_path / "run")
    hidden = f".5.cordwood-{'0' * 16}"
    for name in (
        f"{hidden}.deleted/cordwood.json",
        f"{hidden}.stage/w/0",
        ".steps.cordwood-lock",
        f".steps{hidden[2:]}.probe",
    ):
        files[name] = b"dead"
    files[f"{hidden}.deleted/notes"] = b"mine"
    code, _, err = run("rm", tmp_path / "run", "--yes")
    assert code == 3
    assert hidden in err
    del files[f"{hidden}.deleted/notes"]
    assert run("rm", tmp_path / "run", "--yes").code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_nickname_is_refused_and_says_which_step_it_is(run: Run, tmp_path: Path) -> None:
    manager_run(str(tmp_path / "run"))
    code, _, err = run("rm", tmp_path / "run" / "latest", "--yes")
    assert code == 2
    assert f"latest, which is {tmp_path}/run/2 now, may be another step in a moment" in err
    assert run("rm", tmp_path / "run" / "best", "--yes").code == 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1", "2"]


def test_a_pinned_step_stays(run: Run, tmp_path: Path) -> None:
    manager_run(str(tmp_path / "run"))
    reader = cordwood.StepReader(tmp_path / "run")
    with reader.pin(1):
        for path in (tmp_path / "run" / "1", tmp_path / "run"):
            code, _, err = run("rm", path, "--yes")
            assert code == 3
            assert "it is in use: a job saves it, or has pinned it; nothing was removed" in err
    assert reader.steps() == [1, 2]
    assert run("rm", tmp_path / "run" / "1", "--yes").code == 0
    assert reader.steps() == [2]


def test_what_has_come_since_it_was_shown_is_not_removed(tmp_path: Path) -> None:
    manager_run(str(tmp_path / "run"))
    plan = plan_removal(tmp_path / "run")
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, TREE)
    before = contents(tmp_path)
    with pytest.raises(NotACheckpointError, match="it has changed since it was shown"):
        remove(plan)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["a.msgpack", "a"])
def test_a_newer_save_of_the_same_size_is_not_removed(tmp_path: Path, name: str) -> None:
    layout: Literal["zarr"] | None = None if "." in name else "zarr"
    cordwood.save(tmp_path / name, TREE, format=layout)
    plan = plan_removal(tmp_path / name)
    cordwood.save(tmp_path / name, {**TREE, "b": np.full(3, 7.0)}, format=layout)
    before = contents(tmp_path)
    with pytest.raises(NotACheckpointError, match="it has changed since it was shown"):
        remove(plan)
    assert contents(tmp_path) == before


def test_a_save_that_is_made_during_the_removal_stays_beside_what_was_there_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.msgpack"
    cordwood.save(path, TREE)
    plan = plan_removal(path)
    old = path.read_bytes() + b"more"

    class Saving(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            super().replace(source, target)
            if source == str(path):
                Path(target).write_bytes(old)
                path.write_bytes(b"newer")

    with (
        syscalls.override(Saving()),
        pytest.raises(NotACheckpointError, match="has been saved again meanwhile") as e,
    ):
        remove(plan)
    assert path.read_bytes() == b"newer"
    (kept,) = [each for each in tmp_path.iterdir() if each.name.startswith(".a.msgpack.")]
    assert str(kept) in str(e.value)
    assert kept.read_bytes() == old
    assert not kept.name.endswith(".deleted")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL])
def test_what_has_changed_gets_its_name_again_also_where_no_rename_looks_for_others(
    tmp_path: Path, code: int
) -> None:
    path = tmp_path / "a.msgpack"
    cordwood.save(path, TREE)
    plan = plan_removal(path)
    path.write_bytes(b"newer")

    class Old(syscalls.SystemCalls):
        def rename_to_free_name(self, source: str, target: str) -> None:
            raise OSError(code, source, None, target)

    with (
        syscalls.override(Old()),
        pytest.raises(NotACheckpointError, match="it has changed since it was shown"),
    ):
        remove(plan)
    assert path.read_bytes() == b"newer"


def test_where_nobody_can_answer_it_says_so(tmp_path: Path) -> None:
    import sys

    cordwood.save(tmp_path / "a", TREE)
    command = [sys.executable, "-m", "cordwood", "rm", str(tmp_path / "a")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "pass --yes where nobody can answer" in ended.stderr
    cordwood.load(tmp_path / "a")


def test_the_command_that_a_manager_names_removes_the_step_of_another_tool(
    run: Run, tmp_path: Path
) -> None:
    flax_run(tmp_path / "run")
    manager = CheckpointManager(tmp_path / "run")
    with pytest.raises(cordwood.errors.StepError) as e:
        manager.delete(2)
    command = str(e.value).partition("to remove it: cordwood ")[2].split()
    assert command[0] == "rm"
    assert run(*command, "--yes").code == 0
    assert manager.steps() == [1]


@pytest.fixture(params=["memory", "s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_url(request.param, monkeypatch) as url:
        yield url


def test_a_step_and_a_run_in_a_store(run: Run, store: str) -> None:
    manager_run(f"{store}/run")
    manager_run(f"{store}/run2")
    objects = StoredObjects(store)
    others = {name for name in objects if name.startswith("run2/")}
    code, out, _ = run("rm", f"{store}/run/1", "--dry-run")
    assert code == 0
    assert "1 file" in out
    objects["run/1/notes"] = b"mine"
    for path in ("run/1", "run"):
        code, _, err = run("rm", f"{store}/{path}", "--yes")
        assert code == 3
        assert "notes" in err
    del objects["run/1/notes"]
    assert run("rm", f"{store}/run/1", "--yes").code == 0
    assert cordwood.StepReader(f"{store}/run").steps() == [2]
    assert cordwood.verify(f"{store}/run/2").unverified_bytes == 0
    assert run("rm", f"{store}/run/latest", "--yes").code == 2
    assert run("rm", f"{store}/run", "--yes").code == 0
    assert set(objects) == others
    assert run("rm", f"{store}/run", "--yes").code == 3


def test_a_newer_object_of_the_same_size_is_not_removed_from_a_store(store: str) -> None:
    cordwood.save(f"{store}/a", TREE)
    plan = plan_removal(f"{store}/a")
    objects = StoredObjects(store)
    (name,) = [each for each in objects if each.endswith("cordwood.json")]
    objects[name] = objects[name].replace(b"version", b"VERSION")
    before = dict(objects)
    with pytest.raises(NotACheckpointError, match="it has changed since it was shown"):
        remove(plan)
    assert dict(objects) == before
