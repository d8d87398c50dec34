"""The export: what is in the file, what is left out, and how it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cordwood
from tests.cli.conftest import Run
from tests.viewer.exported import exported_resources
from tests.viewer.gpt2_run import Faults, save_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    tree = {f"w{i}": np.random.default_rng(i).random((64 * (i + 1), 64)) for i in range(20)}
    cordwood.save(path, {**tree, "step": 7})
    return path


def test_it_has_the_leaves_their_pages_and_their_statistics(
    run: Run, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.html"
    code, out, err = run("view", path, "--export", file)
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}: ")
    resources = exported_resources(file.read_text())
    assert resources["start"]["exported"]
    assert resources["start"]["left_out"] == {}
    assert resources["checkpoint/a"]["leaf_count"] == 21
    for number in range(20):
        assert resources[f"leaf/a/{number}"]["path"] == f"w{number}"
        assert resources[f"statistics/a/{number}/sample"]["complete"]
    assert "statistics/a/20/sample" not in resources, "an int has no statistics"


def test_the_limit_leaves_out_the_statistics_of_the_smallest_leaves(
    run: Run, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "c.html"
    assert run("view", path, "--export", file)[0] == 0
    everything = exported_resources(file.read_text())
    statistics = [len(json.dumps(everything[f"statistics/a/{i}/sample"])) for i in range(20)]
    limit_bytes = file.stat().st_size - sum(statistics[:10])
    code, _, err = run("view", path, "--export", file, "--force", "--max-mb", limit_bytes / 1e6)
    assert code == 0
    assert file.stat().st_size <= limit_bytes
    resources = exported_resources(file.read_text())
    taken = [number for number in range(20) if f"statistics/a/{number}/sample" in resources]
    assert 0 < len(taken) < 20
    assert taken == list(range(20 - len(taken), 20))
    missing = 20 - len(taken)
    assert f"left out to stay within --max-mb: {missing} leaves' statistics" in err
    assert resources["start"]["left_out"] == {"statistics": missing}


def test_json_names_what_is_left_out(run: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.html"
    document = json.loads(run("view", path, "--export", file, "--max-mb", "0.4", "--json").out)
    assert document["path"] == str(file)
    assert document["size_bytes"] == file.stat().st_size
    assert document["left_out"]["statistics"] > 0
    assert document["unreadable"] == {}


def test_a_limit_below_the_list_of_leaves_is_an_error(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {f"x{i}": np.float32(1) for i in range(4000)})
    code, _, err = run("view", tmp_path / "c", "--export", tmp_path / "c.html", "--max-mb", "0.2")
    assert code == 3
    needed = re.search(r"need ([0-9.]+) MB, .* limit of 0.2 MB; raise --max-mb", err)
    assert needed is not None
    assert not (tmp_path / "c.html").exists()
    arguments = ("view", tmp_path / "c", "--export", tmp_path / "c.html", "--max-mb")
    code, _, err = run(*arguments, float(needed[1]) - 0.1)
    assert code == 3
    assert f"need {needed[1]} MB" in err
    assert run(*arguments, needed[1]).code == 0, "the size that the error names is enough"


@pytest.mark.parametrize("option", [("--force",), ("--max-mb", "20")])
def test_an_option_of_the_export_without_a_file_is_an_error(
    run: Run, path: Path, option: tuple[str, ...]
) -> None:
    code, _, err = run("view", path, *option)
    assert code == 2
    advice = f"add --export FILE.html, or leave out {option[0]}"
    assert f"{option[0]} is for --export: {advice}" in " ".join(err.split())


def test_a_directory_is_no_name_of_an_export(run: Run, path: Path, tmp_path: Path) -> None:
    code, _, err = run("view", path, "--export", tmp_path)
    assert code == 3
    assert f"{tmp_path} is a directory; give the name of the file to write" in err


def test_a_file_is_replaced_with_force_only(run: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.html"
    file.write_text("mine")
    code, _, err = run("view", path, "--export", file)
    assert code == 3
    assert f"{file} exists; pass --force to replace it" in err
    assert file.read_text() == "mine"
    assert run("view", path, "--export", file, "--force").code == 0
    assert "checkpoint/a" in exported_resources(file.read_text())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c", "c.html"]


def test_the_checkpoint_itself_is_not_replaced(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    cordwood.save(file, {"w": np.ones(3)})
    contents = file.read_bytes()
    (tmp_path / "link").symlink_to(file)
    for name in (file, tmp_path / "link"):
        code, _, err = run("view", file, "--export", name, "--force")
        assert code == 3
        assert "choose another name for the export" in err
        assert file.read_bytes() == contents


def test_a_damaged_leaf_is_named_and_the_rest_exported(
    run: Run, path: Path, tmp_path: Path
) -> None:
    (data,) = path.glob("*.safetensors")
    contents = bytearray(data.read_bytes())
    contents[5000] ^= 1
    data.write_bytes(contents)
    code, _, err = run("view", path, "--export", tmp_path / "c.html")
    assert code == 0
    assert "not exported: statistics/a/" in err
    resources = exported_resources((tmp_path / "c.html").read_text())
    assert "checkpoint/a" in resources
    statistics = [f"statistics/a/{number}/sample" in resources for number in range(20)]
    assert any(statistics)
    assert not all(statistics)


def test_a_run_has_its_steps_and_their_norms(run: Run, tmp_path: Path) -> None:
    save_run(tmp_path / "run", count=3, every=10, vocabulary=500)
    file = tmp_path / "run.html"
    assert run("view", tmp_path / "run", "--export", file).code == 0
    resources = exported_resources(file.read_text())
    assert resources["start"]["kind"] == "run"
    assert [step["name"] for step in resources["run"]["steps"]] == ["10", "20", "30"]
    for step in (10, 20, 30):
        assert f"norms/{step}/sample" in resources
        assert f"checkpoint/{step}" in resources
    assert "statistics/30/0/sample" in resources, "of the newest step"
    assert "leaf/20/0" not in resources


def test_a_difference_has_both_checkpoints_and_the_changed_leaves(
    run: Run, path: Path, tmp_path: Path
) -> None:
    tree = cordwood.load(path)
    tree["w3"][5] += 1
    tree["w9"] *= 2
    cordwood.save(tmp_path / "d", tree)
    file = tmp_path / "diff.html"
    assert run("view", path, tmp_path / "d", "--export", file).code == 0
    resources = exported_resources(file.read_text())
    assert resources["start"]["kind"] == "diff"
    assert {"checkpoint/a", "checkpoint/b", "diff/a/b/digests"} <= set(resources)
    assert resources["diff/a/b/sample"]["counts"]["changed"] == 2
    leaves = [name for name in resources if name.startswith("diff-leaf/")]
    assert leaves == ["diff-leaf/a/b/9/9/sample", "diff-leaf/a/b/3/3/sample"]
    assert "leaf/b/0" in resources


def test_a_run_has_the_differences_of_its_whole_steps(run: Run, tmp_path: Path) -> None:
    save_run(tmp_path / "run", count=4, every=10, vocabulary=500, faults=Faults(damaged=20))
    file = tmp_path / "run.html"
    assert run("view", tmp_path / "run", "--export", file).code == 0
    resources = exported_resources(file.read_text())
    differences = [name for name in resources if name.startswith("diff/")]
    assert differences == [
        "diff/30/40/digests",
        "diff/10/30/digests",
        "diff/30/40/all",
        "diff/10/30/all",
    ]
    assert "norms/20/sample" not in resources


def test_a_run_whose_newest_step_is_cut_off_is_exported_without_it(
    run: Run, tmp_path: Path
) -> None:
    for step in (10, 20):
        cordwood.save(tmp_path / "run" / str(step), {"w": np.ones(99)})
    (data,) = (tmp_path / "run" / "20").glob("data-*.safetensors")
    data.write_bytes(data.read_bytes()[:100])
    code, _, err = run("view", tmp_path / "run", "--export", tmp_path / "run.html")
    assert code == 0
    assert "not exported: checkpoint/20: " in err
    resources = exported_resources((tmp_path / "run.html").read_text())
    assert "checkpoint/10" in resources
    assert "checkpoint/20" not in resources


def test_a_checkpoint_that_is_cut_off_is_an_error(run: Run, path: Path, tmp_path: Path) -> None:
    (data,) = path.glob("*.safetensors")
    data.write_bytes(data.read_bytes()[:100])
    code, _, err = run("view", path, "--export", tmp_path / "c.html")
    assert code == 3
    assert f"{data.name}: expected" in err
    assert "interrupted" not in err


def test_ctrl_c_leaves_no_file(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cordwood.viewer.statistics_view.leaf_statistics", interrupted)
    code, _, err = run("view", path, "--export", tmp_path / "c.html")
    assert (code, err.strip()) == (130, "interrupted")
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_a_difference_with_a_damaged_side_is_exported_without_values(
    run: Run, path: Path, tmp_path: Path
) -> None:
    cordwood.save(tmp_path / "d", {name: 2 * leaf for name, leaf in cordwood.load(path).items()})
    (data,) = (tmp_path / "d").glob("*.safetensors")
    contents = bytearray(data.read_bytes())
    contents[5000] ^= 1
    data.write_bytes(contents)
    code, _, err = run("view", path, tmp_path / "d", "--export", tmp_path / "c.html")
    assert code == 0
    assert "not exported: diff/a/b/sample: " in err
    resources = exported_resources((tmp_path / "c.html").read_text())
    assert "diff/a/b/digests" in resources
    assert "statistics/a/0/sample" in resources
