"""Results of the blocks of docs/get-started.md and of the pages under docs/how-to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.testing import assert_trees_equal
from tests.docs.run_page import ROOT, blocks_of, run_page, run_python, run_shell
from tests.storage.hub_server import hub_for_tests

HOW_TO = ROOT / "docs" / "how-to"


def run(page: str) -> dict[str, Any]:
    return run_page(f"docs/how-to/{page}")


def run_first_block(page: str, to_step: int | None = None) -> dict[str, Any]:
    """Run the training script of a page in a namespace of its own; it trains up to `to_step`."""
    names: dict[str, Any] = {"__name__": "page"}
    script = blocks_of(f"docs/how-to/{page}")[0][1]
    if to_step is not None:
        assert script.count(" 11):") == 1
        script = script.replace(" 11):", f" {to_step}):")
    run_python(script, page, names)
    return names


def require_equal_arrays(tree: Any, expected: Any) -> None:
    """Compare the values of all leaves, but neither containers nor devices."""
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(expected)
    assert len(leaves) == len(others) > 0
    for leaf, other in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    level = logging.getLogger("cordwood").level
    yield
    logging.getLogger("cordwood").setLevel(level)


def test_the_page_get_started_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("docs/get-started.md")
    assert (
        "dense/kernel: expected float32[256,32], found float32[256,64]" in capsys.readouterr().out
    )
    assert cordwood.StepReader("run").steps() == [800, 900, 1000]
    assert float(names["loss"]) < 0.2
    (script,) = [code for _, code in blocks_of("docs/get-started.md") if "def train_step" in code]
    run_python(script, "docs/get-started.md", names)
    assert names["restored"].step == 1000


TRAINED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "flax-linen.md": lambda names: names["state"],
    "flax-nnx.md": lambda names: names["nnx"].state((names["model"], names["optimizer"])),
    "haiku.md": lambda names: names["run"],
}


@pytest.mark.parametrize("page", TRAINED)
def test_the_run_of_a_framework_resumes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(page)
    assert cordwood.StepReader("run").steps() == [5, 10]
    resumed = run_first_block(page, to_step=21)
    assert resumed["restored"].step == 10
    (tmp_path / "uninterrupted").mkdir()
    monkeypatch.chdir(tmp_path / "uninterrupted")
    uninterrupted = run_first_block(page, to_step=21)
    assert uninterrupted["restored"] is None
    require_equal_arrays(TRAINED[page](resumed), TRAINED[page](uninterrupted))


def test_the_page_about_equinox_runs() -> None:
    names = run("equinox.md")
    assert cordwood.StepReader("run").steps() == [5, 10]
    arrays = names["eqx"].filter(names["run"], names["eqx"].is_array)
    assert_trees_equal(cordwood.load("run/10", like=arrays), arrays)
    assert names["head"].weight is names["embed"].weight
    assert len(cordwood.open("tied")) == 1
    with pytest.raises(cordwood.errors.UnsupportedLeafError, match=r"equinox\.filter"):
        cordwood.save("model.safetensors", names["fresh"])


def test_the_page_about_nnx_runs() -> None:
    names = run("flax-nnx.md")
    assert list(cordwood.open("for_others.safetensors")) == ["bias", "kernel"]
    assert list(cordwood.open("module")) == ["bias/value", "kernel/value"]
    nnx, sizes = names["nnx"], {"features": 8, "hidden": 16, "classes": 3}
    assert names["sizes"] == names["description"].extras["hyperparameters"] == sizes
    assert names["description"].tree == {}
    original = names["Classifier"](**sizes, rngs=nnx.Rngs(0))
    for restored in (names["classifier"], names["loaded"]):
        assert_trees_equal(nnx.state(restored), nnx.state(original))
        assert nnx.graphdef(restored) == nnx.graphdef(original)


def test_the_page_about_optax_runs() -> None:
    names = run("optax.md")
    assert names["restored"].step == 1
    np.testing.assert_array_equal(names["model"]["dense"]["lora_a"], np.ones((4, 2)))
    assert names["adapters"]["dense"]["kernel"] is None
    assert repr(jax.tree.structure(names["state"])) == repr(jax.tree.structure(names["fresh"]))
    assert_trees_equal(names["for_evaluation"], names["ema"])


def test_the_page_about_inference_runs() -> None:
    names = run("inference.md")
    assert names["restored"].step == 100
    assert set(names["params"]) == {"dense"}
    for name in ("params.safetensors", "export.safetensors"):
        assert cordwood.load(name)["dense"]["kernel"].dtype == jnp.bfloat16


def test_the_page_about_hugging_face_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"encoder.layer.{n}.output.bias": np.full(3, n, np.float32) for n in range(2)}
    files = {"model.safetensors": safetensors.numpy.save(tensors)}
    below = {f"text_encoder/{name}": data for name, data in files.items()}
    with hub_for_tests(tmp_path / "hf-home", monkeypatch) as hub:
        for revision in ("main", "v1.0"):
            hub.publish("org/bert", {**files, **below}, revision)
        names = run("hugging-face.md")
    assert list(names["checkpoint"]) == list(tensors)
    assert cordwood.diff("bert-v1", tensors).equal
    original = safetensors.numpy.load_file("snapshot/model.safetensors")
    for name, tensor in safetensors.numpy.load_file("upload/model.safetensors").items():
        np.testing.assert_array_equal(tensor, original[name])
    assert cordwood.verify("upload").unverified_bytes == 0
    assert list(cordwood.load("bert")["layer_0"]["up"]) == ["kernel"]
    assert set(safetensors.numpy.load_file("upload-2/model.safetensors")) == {
        *["embed.embedding", "layer_0.norm.scale", "layer_0.query.bias", "layer_0.query.kernel"],
        "layer_0.up.kernel",
    }


def test_the_page_about_orbax_runs() -> None:
    names = run("orbax.md")
    key = names["restored"].items["rng"]
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(3))).all()
    assert names["restored"].extras == {"meta": {"lr": 0.1}}
    assert next(names["batches"])[0] == 4
    assert cordwood.StepReader("run").steps() == [100, 200, 300]
    with names["ocp"].CheckpointManager(Path("back").absolute()) as manager:
        args = names["ocp"].args.StandardRestore(names["make_state"]())
        require_equal_arrays(manager.restore(300, args=args), names["newest"].tree)


def test_the_table_of_orbax_has_the_names_of_the_hints() -> None:
    from cordwood.manager.argument_hints import ARGUMENTS, ATTRIBUTES

    page = (HOW_TO / "orbax.md").read_text()
    for name in ("latest_step", "all_steps", "best_step", "item_metadata", "wait_until_finished"):
        assert name in ATTRIBUTES
        assert name in page
    for name in ("save_interval_steps", "max_to_keep", "keep_period", "best_fn", "save_on_steps"):
        assert name in ARGUMENTS
        assert name in page


def test_the_page_about_flax_checkpoints_runs() -> None:
    names = run("flax-checkpoints.md")
    assert cordwood.StepReader("run").steps() == [100, 200, 300]
    expected = cordwood.load("run/300", like=jax.eval_shape(names["make_state"]))
    require_equal_arrays(names["state"], expected)


def test_the_page_about_eformer_runs() -> None:
    names = run("eformer.md")
    assert cordwood.StepReader("run").steps() == [100, 200, 300]
    require_equal_arrays(names["loaded"], names["params"])


def test_the_page_about_publishing_runs() -> None:
    names = run("publish-and-follow.md")
    assert names["follower"].version == 3


def test_the_page_about_recovery_runs() -> None:
    names = run("recover.md")
    assert names["manager"].steps() == [50, 55, 60]
    assert cordwood.StepReader("safe/run").steps() == [40, 60]


def test_the_page_about_several_hosts_runs() -> None:
    names = run("several-hosts.md")
    assert names["restored"] is None
    names = run_first_block("several-hosts.md")
    assert names["restored"].step == 300
    assert (
        names["restored"]
        .tree["dense"]["kernel"]
        .sharding.is_equivalent_to(names["shardings"]["dense"]["kernel"], 2)
    )


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_page_about_accelerators_runs(
    request: pytest.FixtureRequest, accelerator: bool
) -> None:
    if accelerator:
        request.getfixturevalue("fake_accelerator")
    names = run("accelerators.md")
    require_equal_arrays(names["restored"], names["state"])
    require_equal_arrays(cordwood.load("run/300"), names["state"])


def test_the_page_about_object_stores_runs() -> None:
    names = run("object-stores.md")
    assert names["restored"] is None
    assert names["rows"].shape == (3, 16)


def test_the_page_about_grain_runs() -> None:
    assert run("grain.md")["restored"].step == 5


def test_the_page_about_bulk_work_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run("bulk.md")
    assert capsys.readouterr().out.count("run/100: no damage: 1 leaf, 1.0 MiB verified\n") == 2
    assert not Path("journal").exists()


def test_the_page_about_copies_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("copy.md")
    assert "memory://bucket/best: 2 files" in capsys.readouterr().out
    cordwood.verify("restored/2")
    for path in ("run/3", f"{names['bucket']}/run/3"):
        np.testing.assert_array_equal(cordwood.load(path)["w"], np.full(8, 3))


def test_the_page_about_large_models_runs() -> None:
    names = run("large-models.md")
    assert len(names["loaded"]["embed"].addressable_shards) == jax.device_count() == 8
    assert names["loaded"]["embed"].addressable_shards[0].data.shape == (64, 64)


def test_the_page_about_averages_runs() -> None:
    assert run("combine.md")["steps"] == [400, 500, 600, 700, 800]
    assert cordwood.load("mean.safetensors")["dense"]["bias"].shape == (4,)


def test_the_page_about_pytorch_runs() -> None:
    names = run("pytorch.md")
    tensors = safetensors.numpy.load_file("for-torch/model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "norm.weight": (4,),
        "up.bias": (16,),
        "up.weight": (16, 4),
    }
    assert names["loaded"]["up"]["kernel"].shape == (4, 16)


def test_the_page_about_disk_space_runs() -> None:
    names = run("disk-space.md")
    assert not Path("run").exists()
    assert set(cordwood.load("params.safetensors")) == {"embed", "head"}
    assert_trees_equal(cordwood.load("archive", like=names["make_state"]()), names["make_state"]())


@pytest.mark.parametrize(("keep", "count"), [(3, 4), (cordwood.KeepLast(3), 4), (None, 6)])
def test_the_steps_on_the_disk_while_one_is_saved(keep: Any, count: int) -> None:
    """See the table in docs/how-to/disk-space.md."""
    counts: list[int] = []
    with cordwood.CheckpointManager(
        "run",
        save=1,
        keep=keep,
        background=False,
        on_save=lambda _: counts.append(len(list(Path("run").glob("[0-9]*")))),
    ) as manager:
        for step in range(6):
            manager.save(step, {"w": np.zeros(3)})
    assert max(counts) in (count - 1, count)


def test_the_page_about_reproducible_resume_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproducible-resume.md")["steps"] == [3, 4, 5]
    assert "w: float32[8]" in capsys.readouterr().out


def test_the_page_about_sharing_runs() -> None:
    run("share.md")
    assert cordwood.load("params.safetensors")["dense"]["kernel"].dtype == jnp.bfloat16
    (check,) = [code for _, code in blocks_of("docs/how-to/share.md") if "--check" in code]
    data = next(Path("for-you/100").glob("data-*"))
    content = data.read_bytes()
    for change in (
        lambda: data.write_bytes(content[:-1] + b"x"),
        lambda: Path("for-you/100/new").touch(),
    ):
        change()
        with pytest.raises(AssertionError, match=r"new|FAILED"):
            run_shell(check)
        data.write_bytes(content)


def test_the_page_about_several_trees_runs() -> None:
    names = run("several-trees.md")
    np.testing.assert_array_equal(names["as_saved"]["ema"]["w"], np.full(3, 0.5))


def test_the_page_about_logging_runs(caplog: pytest.LogCaptureFixture) -> None:
    run("logging.md")
    assert [each for each in caplog.messages if each.startswith("saved step 10")]
    (events,) = Path("logs").iterdir()
    assert b"checkpoint/written_bytes" in events.read_bytes()
    assert list(Path("wandb").glob("offline-run-*/run-*.wandb"))


def test_static_fields_are_neither_stored_nor_compared() -> None:
    """See the table in docs/stored-and-compared.md."""
    import equinox as eqx

    class Model(eqx.Module):
        w: jax.Array
        heads: int = eqx.field(static=True)

    cordwood.save("m", Model(jnp.ones(2), heads=3))
    loaded = cordwood.load("m", like=Model(jnp.zeros(2), heads=5))
    assert loaded.heads == 5
    np.testing.assert_array_equal(loaded.w, np.ones(2))


def test_recipes() -> None:
    params = run("recipes.md")["params"]
    assert params["layers"]["down"].shape == (3, 32, 8)
