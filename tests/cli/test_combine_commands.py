"""cordwood combine and cordwood average."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.cli.conftest import Run


@pytest.fixture(params=["a disk", "an object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a run of the steps 100, 200 ... 600."""
    root = f"{tmp_path}/run" if request.param == "a disk" else f"memory://{tmp_path.name}/run"
    with cordwood.CheckpointManager(root, keep=10) as manager:
        for step in range(100, 700, 100):
            state = {"params": {"w": np.full(3, step, np.float32)}, "step": step}
            manager.save(step, state)
    return root


def test_combine_writes_a_weighted_sum(run: Run, root: str, tmp_path: Path) -> None:
    ran = run(
        *("combine", f"{root}/100=2", f"{root}/latest=-0.5", f"{tmp_path}/out.safetensors"),
        *("--select", "params", "--rename", "params=", "--cast", "bf16", "--json"),
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["leaves"] == 1
    result = cordwood.load(tmp_path / "out.safetensors", cast="f32")
    assert_trees_equal(result, {"w": np.full(3, -100, np.float32)})


def test_combine_says_what_to_do_about_counters(run: Run, root: str, tmp_path: Path) -> None:
    terms = (f"{root}/100=0.5", f"{root}/200=0.5")
    ran = run("combine", *terms, f"{tmp_path}/out")
    assert ran.code == 3
    assert "these differ: step" in ran.err
    ran = run("combine", *terms, f"{tmp_path}/out", "--others", "last")
    assert ran.code == 0, ran.err
    assert cordwood.load(tmp_path / "out")["step"] == 200


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (("a",), "expected PATH=WEIGHT, such as run/800=0.5, found 'a'"),
        (("a=b",), "expected PATH=WEIGHT, such as run/800=0.5, found 'a=b'"),
        (("=1",), "expected PATH=WEIGHT, such as run/800=0.5, found '=1'"),
        (("a=1", "a=2"), "'a' has two weights"),
        (("a=inf",), "expected a finite weight"),
    ],
)
def test_wrong_terms_are_refused(
    run: Run, tmp_path: Path, terms: tuple[str, ...], message: str
) -> None:
    ran = run("combine", *terms, f"{tmp_path}/out")
    assert ran.code == 2
    assert message in " ".join(ran.err.split())


def test_a_destination_that_is_left_out_is_no_checkpoint_to_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cordwood.save("a", {"w": np.ones(3, np.float32)})
    ran = run("combine", "a=0.5", "a=2")
    assert ran.code == 2
    assert "expected DESTINATION after the checkpoints, found 'a=2'" in " ".join(ran.err.split())
    assert "write 'a=2/' for a directory of that name" in " ".join(ran.err.split())
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert run("combine", "a=0.5", "a=2/").code == 0
    assert cordwood.load("a=2")["w"].tolist() == [0.5] * 3


def test_an_average_needs_a_run(run: Run, tmp_path: Path) -> None:
    ran = run("average", f"{tmp_path}/misspelt", f"{tmp_path}/mean", "--last", "1")
    assert (ran.code, "there is nothing" in ran.err) == (3, True)
    cordwood.save(tmp_path / "tree", {"w": np.ones(3, np.float32)})
    ran = run("average", f"{tmp_path}/tree", f"{tmp_path}/mean", "--last", "1")
    assert ran.code == 2
    assert "not a directory of steps" in " ".join(ran.err.split())


def test_average_takes_the_last_steps(run: Run, root: str, tmp_path: Path) -> None:
    ran = run("average", root, f"{tmp_path}/mean", "--last", "4", "--others", "last")
    assert ran.code == 0, ran.err
    expected = {"params": {"w": np.full(3, 450, np.float32)}, "step": 600}
    assert_trees_equal(cordwood.load(tmp_path / "mean"), expected)


def test_average_needs_that_many_steps(run: Run, root: str, tmp_path: Path) -> None:
    ran = run("average", root, f"{tmp_path}/mean", "--last", "7")
    assert ran.code == 2
    assert "expected 7 complete steps, found 6" in ran.err


def test_merge_lora_takes_names_and_an_alpha(run: Run, tmp_path: Path) -> None:
    factors = {"a": np.ones((2, 1), np.float32), "b": np.ones((1, 3), np.float32)}
    cordwood.save(tmp_path / "base", {"mlp": {"kernel": np.ones((2, 3), np.float32)}})
    cordwood.save(tmp_path / "lora", {"mlp": {**factors, "alpha": np.float32(4)}})
    paths = [f"{tmp_path}/{name}" for name in ("base", "lora", "merged")]
    names = ("--target", "{module}/kernel", "--down", "{module}/a", "--up", "{module}/b")
    ran = run("merge-lora", *paths, *names, "--alpha", "2")
    assert ran.code == 3
    assert "mlp/alpha: no factor of LoRA" in ran.err
    ran = run("merge-lora", *paths, *names, "--alpha", "{module}/alpha", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["leaves"] == 1
    merged = cordwood.load(tmp_path / "merged")
    assert_trees_equal(merged, {"mlp": {"kernel": np.full((2, 3), 5, np.float32)}})
    ran = run("merge-lora", *paths, "--alpha", "2", "--force")
    assert ran.code == 2
    text = "expected all of target, down, up and alpha; without a value: target, down, up"
    assert text in " ".join(ran.err.split())
    ran = run("merge-lora", *paths, *names, "--alpha", "two", "--force")
    assert "alpha: expected a number, or a name with one {module}" in " ".join(ran.err.split())
    misspelt = ("--target", "{module}/kernal", "--down", "{module}/a", "--up", "{module}/c")
    ran = run("merge-lora", *paths, *misspelt, "--alpha", "2", "--force")
    assert "expected as factors: {module}/a with {module}/c" in ran.err
    ran = run("merge-lora", *paths, *misspelt[:-1], "{module}/b", "--alpha", "2", "--force")
    assert "mlp/a: the base has no mlp/kernal; did you mean mlp/kernel?" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("combine", "run/0=1", "out"), 0),
        (("combine", "run/0=one", "out"), 2),
        (("combine", "run/0=1", "run/0", "--force"), 2),
        (("combine", "run/0=1", "nothing=1", "out"), 3),
        (("combine", "run/0=1", "other=1", "out"), 3),
        (("combine", "run/0=1", "other"), 3),
        (("average", "run", "out", "--last", "2"), 0),
        (("average", "run", "out", "--last", "3"), 2),
        (("average", "nothing", "out", "--last", "2"), 3),
        (("merge-lora", "run/0", "other", "out", "--alpha", "2"), 2),
        (("merge-lora", "nothing", "run/0", "out"), 3),
        (("prune", "run", "--keep", "last 1", "--yes"), 0),
        (("prune", "run", "--keep", "first 1", "--yes"), 2),
        (("prune", "run", "--keep", "best 1 los", "--yes"), 2),
        (("prune", "nothing", "--keep", "last 1", "--yes"), 3),
        (("verify", "run/0"), 0),
        (("verify", "run/0", "--journal", "run/0/journal"), 2),
        (("verify", "run/0", "--part", "2/2"), 2),
        (("verify", "nothing"), 3),
    ],
)
def test_wrong_arguments_are_2_and_what_does_not_exist_or_fit_is_3(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    with cordwood.CheckpointManager("run", keep=10) as manager:
        for step in range(2):
            manager.save(step, {"w": np.full(3, step, np.float32)})
    cordwood.save("other", {"w": np.ones(4, np.float32)})
    ran = run(*arguments)
    assert ran.code == code, ran.err
    if code:
        assert cordwood.StepReader("run").steps() == [0, 1]
        assert not Path("out").exists()


@pytest.mark.parametrize(
    ("weights", "total"), [((0.5, 0.5), ""), ((0.3, 0.3), "0.6"), ((1.5, -1), ""), ((2, 1), "3")]
)
def test_weights_that_are_those_of_no_mean_are_pointed_out(
    run: Run, tmp_path: Path, weights: tuple[float, float], total: str
) -> None:
    for name in ("a", "b"):
        cordwood.save(tmp_path / name, {"w": np.ones(3, np.float32)})
    terms = [f"{tmp_path}/{name}={weight}" for name, weight in zip("ab", weights, strict=True)]
    ran = run("combine", *terms, f"{tmp_path}/out", "--json")
    assert ran.code == 0
    assert ran.err == (
        f"note: the weights add up to {total}; those of a mean add up to 1\n" if total else ""
    )
    json.loads(ran.out)


def test_an_archive_is_no_file_and_the_message_says_its_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cordwood.save("a.safetensors", {"w": np.ones(3, np.float32)})
    ran = run("convert", "a.safetensors", "b.safetensors", "--archive")
    assert ran.code == 2
    assert "means a file: leave out .safetensors" in " ".join(ran.err.split())
    assert run("convert", "a.safetensors", "b", "--archive").code == 0
