"""The files beside the weights of a hub directory: copied to another one, or named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.formats.hugging_face import files_beside_weights

COPIED = ("README.md", "config.json", "generation_config.json", "tokenizer.json", "vocab.txt")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, path / "model.safetensors")
    for name in COPIED:
        (path / name).write_text(f'{{"of": "{name}"}}')
    (path / "pytorch_model.bin").write_bytes(b"weights")
    (path / "modeling_model.py").write_text("print(1)")
    (path / ".gitattributes").write_text("")
    (path / "onnx").mkdir()
    return path


def test_they_are_copied_to_another_directory_of_the_hub(tmp_path: Path, model: Path) -> None:
    done = cordwood.convert(model, tmp_path / "out", format="hugging_face", cast="bf16")
    assert done.files == COPIED
    assert done.left_out == ("modeling_model.py", "onnx/", "pytorch_model.bin")
    for name in COPIED:
        assert (tmp_path / "out" / name).read_bytes() == (model / name).read_bytes()
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == sorted([*COPIED, "model.safetensors"])
    assert "; copied: README.md, config.json" in str(done)
    assert "not converted: modeling_model.py, onnx/, pytorch_model.bin\n" in str(done)


@pytest.mark.parametrize("name", ["out", "out.safetensors"])
def test_they_are_named_where_they_have_no_place(tmp_path: Path, model: Path, name: str) -> None:
    done = cordwood.convert(model, tmp_path / name)
    assert done.files == ()
    assert set(COPIED) < set(done.left_out)
    assert "not converted: README.md, config.json" in str(done)


def test_they_are_written_on_the_way_back(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cordwood.convert(model, tmp_path / "packs")
    (advice,) = [text for text in caplog.messages if "not converted: README.md, config" in text]
    assert f"files_from='{model}' writes them on the way back" in advice
    caplog.clear()
    done = cordwood.convert(
        tmp_path / "packs", tmp_path / "back", format="hugging_face", files_from=model
    )
    assert (done.files, done.left_out, caplog.messages) == (COPIED, (), [])
    for name in COPIED:
        assert (tmp_path / "back" / name).read_bytes() == (model / name).read_bytes()
    assert cordwood.diff(model, tmp_path / "back").equal


def test_an_open_checkpoint_has_them_too(tmp_path: Path, model: Path) -> None:
    with cordwood.open(model) as checkpoint:
        done = cordwood.convert(checkpoint, tmp_path / "out", format="hugging_face")
    assert done.files == COPIED


def test_files_from_another_directory_take_their_place(tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    done = cordwood.convert(model, tmp_path / "out", format="hugging_face", files_from=other)
    assert done.files == ("config.json",)
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert "tokenizer.json" in done.left_out


def test_files_from_nowhere_are_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("empty", "nothing"):
        with pytest.raises(ValueError, match=f"{path}: expected a directory with a config"):
            cordwood.convert(
                model, tmp_path / "out", format="hugging_face", files_from=tmp_path / path
            )
    with pytest.raises(ValueError, match='files_from= is for format="hugging_face": packs has'):
        cordwood.convert(model, tmp_path / "out", files_from=model)
    assert not (tmp_path / "out").exists()


def test_links_of_the_cache_are_followed_and_no_others(tmp_path: Path, model: Path) -> None:
    snapshot = tmp_path / "models--o--m" / "snapshots" / "abc"
    blobs = tmp_path / "models--o--m" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (model / "model.safetensors").rename(blobs / "1")
    (model / "config.json").rename(blobs / "2")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1")
    (snapshot / "config.json").symlink_to("../../blobs/2")
    (tmp_path / "secret").write_text("secret")
    (snapshot / "tokenizer.json").symlink_to(tmp_path / "secret")
    (snapshot / "vocab.txt").symlink_to("nowhere")
    done = cordwood.convert(snapshot, tmp_path / "out", format="hugging_face")
    assert done.files == ("config.json",)
    assert done.left_out == ("tokenizer.json",)


def test_a_large_file_is_left_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_beside_weights, "MAX_FILE_BYTES", 100)
    (model / "tokenizer.json").write_bytes(bytes(101))
    done = cordwood.convert(model, tmp_path / "out", format="hugging_face")
    assert "tokenizer.json" in done.left_out
