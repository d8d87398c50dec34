"""Models on the hub: what is fetched, and what the errors say. The hub is one on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

import cordwood
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    NotACheckpointError,
    StorageError,
    UnsupportedFormatError,
)
from cordwood.recipes import Recipe, Rule
from cordwood.storage.hub.hub_address import HubAddress, parse_hub_url
from cordwood.storage.hub.hub_requests import list_model
from cordwood.storage.locations import Url, parse_location
from tests.golden.orbax_checkpoints import GOLDEN as ORBAX
from tests.storage.hub_server import Hub, hub_for_tests

ROOT = Path(__file__).resolve().parents[2]
SHARDS = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
# Each shard is larger than what is requested for its header.
TENSORS = {
    "embed.weight": np.arange(40_000, dtype=np.float32).reshape(200, 200),
    "layers.0.weight": np.full((300, 200), 2, np.float32),
    "layers.1.weight": np.full((300, 200), 3, np.float32),
}


def files_of_model(scale: float = 1) -> dict[str, bytes]:
    weight_map = dict(zip(TENSORS, SHARDS, strict=True))
    shards = {
        shard: safetensors_bytes({name: TENSORS[name] * np.float32(scale)}, {"format": "pt"})
        for name, shard in weight_map.items()
    }
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    beside = {"config.json": b'{"model_type": "toy"}', "README.md": b"# Toy", "code.py": b""}
    return {"model.safetensors.index.json": index, **beside, **shards}


def require_tensors(tree: Any, scale: float = 1) -> None:
    assert list(tree) == list(TENSORS)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(tree[name], tensor * np.float32(scale))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hf-home"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_for_tests(cache, monkeypatch) as hub:
        hub.publish("org/toy", files_of_model())
        yield hub


@pytest.fixture
def go_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    from huggingface_hub import constants

    def go() -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    return go


# What is fetched


def test_a_model_loads_and_its_files_are_in_the_cache(hub: Hub, cache: Path) -> None:
    require_tensors(cordwood.load("hf://org/toy"))
    assert hub.fetched() == {"model.safetensors.index.json", *SHARDS}
    (snapshot,) = (cache / "hub/models--org--toy/snapshots").iterdir()
    require_tensors(cordwood.load(snapshot))


def test_a_file_in_the_cache_is_not_fetched_again(hub: Hub) -> None:
    cordwood.load("hf://org/toy")
    hub.requests.clear()
    require_tensors(cordwood.load("hf://org/toy"))
    assert hub.requests == []


def test_every_file_is_fetched_by_one_thread(hub: Hub) -> None:
    cordwood.load("hf://org/toy")
    whole = [path for method, path, part in hub.requests if method == "GET" and not part]
    assert sorted(whole) == sorted({*whole})


@pytest.mark.parametrize("has_ranges", [True, False])
def test_opening_reads_headers_alone(hub: Hub, has_ranges: bool) -> None:
    hub.has_ranges = has_ranges
    with cordwood.open("hf://org/toy") as checkpoint:
        assert checkpoint.path == "hf://org/toy"
        assert checkpoint["layers.1.weight"].shape == (300, 200)
        assert (hub.fetched(), hub.begun()) == ({"model.safetensors.index.json"}, {*SHARDS})
        np.testing.assert_array_equal(checkpoint["embed.weight"][3:5], TENSORS["embed.weight"][3:5])
    assert hub.fetched() == {"model.safetensors.index.json", SHARDS[0]}


def test_only_the_files_that_select_needs_are_fetched(hub: Hub) -> None:
    assert list(cordwood.load("hf://org/toy", select="layers.1.*")) == ["layers.1.weight"]
    assert hub.fetched() == {"model.safetensors.index.json", SHARDS[2]}


def test_only_the_files_that_a_recipe_needs_are_fetched(hub: Hub) -> None:
    recipe = Recipe(
        [
            Rule("layers.{i}.weight", "o d", "layers/kernel", "i d o"),
            Rule("embed.weight"),
        ]
    )
    tree = cordwood.load("hf://org/toy", recipe=recipe)
    assert tree["layers"]["kernel"].shape == (2, 200, 300)
    assert hub.fetched() == {"model.safetensors.index.json", *SHARDS[1:]}


def test_a_header_longer_than_the_first_request_is_read_by_a_second_one(hub: Hub) -> None:
    names = [f"{'layer' * 20}.{number}" for number in range(1000)]
    tensors = {name: np.full(64, number, np.float32) for number, name in enumerate(names)}
    hub.publish("org/many", {"model.safetensors": safetensors_bytes(tensors)})
    with cordwood.open("hf://org/many") as checkpoint:
        assert len(checkpoint) == 1000
    assert len(hub.requests) == 2
    assert hub.fetched() == set()
    assert cordwood.load("hf://org/many")[names[7]][0] == 7


def test_views_are_of_the_file_in_the_cache(hub: Hub) -> None:
    tree = cordwood.load("hf://org/toy", mmap=True)
    require_tensors(tree)
    assert not tree["embed.weight"].flags.writeable


# Revisions, folders and files


def test_a_revision_is_a_branch_a_tag_a_request_or_a_commit(hub: Hub) -> None:
    commit = hub.publish("org/toy", files_of_model(4), "v1.0")
    hub.publish("org/toy", files_of_model(5), "refs/pr/3")
    hub.publish("org/toy", files_of_model(6), "team/branch")
    for revision, scale in {
        "main": 1,
        "v1.0": 4,
        commit: 4,
        "refs/pr/3": 5,
        "team%2Fbranch": 6,
    }.items():
        require_tensors(cordwood.load(f"hf://org/toy@{revision}"), scale)


def test_a_branch_that_moves_on_gives_the_new_files_and_an_open_checkpoint_the_old(
    hub: Hub,
) -> None:
    with cordwood.open("hf://org/toy") as checkpoint:
        hub.publish("org/toy", files_of_model(9))
        require_tensors(cordwood.load("hf://org/toy"), 9)
        require_tensors({name: checkpoint[name][:] for name in checkpoint})


CALLS: Mapping[str, Callable[[Path], Any]] = {
    "load": lambda _: cordwood.load("hf://org/toy"),
    "load a folder": lambda _: cordwood.load("hf://org/toy/packs"),
    "load a file": lambda _: cordwood.load(f"hf://org/toy/{SHARDS[0]}"),
    "open": lambda _: cordwood.open("hf://org/toy").close(),
    "detect": lambda _: cordwood.detect("hf://org/toy"),
    "verify": lambda _: cordwood.verify("hf://org/toy"),
    "diff": lambda _: cordwood.diff("hf://org/toy", TENSORS),
    "copy": lambda path: cordwood.copy("hf://org/toy/packs", path),
    "convert": lambda path: cordwood.convert("hf://org/toy", path, format="hugging_face"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_lists_a_model_once(hub: Hub, tmp_path: Path, call: str) -> None:
    cordwood.save(tmp_path / "packs", TENSORS)
    packs = {f"packs/{path.name}": path.read_bytes() for path in (tmp_path / "packs").iterdir()}
    hub.publish("org/toy", {**files_of_model(), **packs})
    CALLS[call](tmp_path / "out")
    assert hub.listings == ["org/toy"]


def test_a_call_reads_one_commit_of_a_branch_that_moves_on(hub: Hub, tmp_path: Path) -> None:
    hub.publish("org/toy", files_of_model() | {"config.json": b"1"})
    new = files_of_model(9) | {"config.json": b"9"}
    hub.after_listing = lambda: hub.publish("org/toy", new)
    cordwood.convert("hf://org/toy", tmp_path / "out", format="hugging_face")
    require_tensors(cordwood.load(tmp_path / "out"))
    assert (tmp_path / "out/config.json").read_bytes() == b"1"
    hub.after_listing = None
    require_tensors(cordwood.load("hf://org/toy"), 9)


def test_an_open_checkpoint_is_converted_with_the_files_of_its_commit(
    hub: Hub, tmp_path: Path
) -> None:
    with cordwood.open("hf://org/toy") as checkpoint:
        hub.publish("org/toy", files_of_model(9) | {"config.json": b"9"})
        cordwood.convert(checkpoint, tmp_path / "out", format="hugging_face")
    assert hub.listings == ["org/toy"]
    require_tensors(cordwood.load(tmp_path / "out"))
    assert (tmp_path / "out/config.json").read_bytes() == files_of_model()["config.json"]


_LOAD = "import cordwood, sys; sys.stdin.readline(); cordwood.load('hf://org/toy')"


def test_processes_of_a_host_fetch_each_file_once(hub: Hub) -> None:
    hub.delay_seconds = 0.3  # so that all have begun before one has a file
    processes = [
        subprocess.Popen([sys.executable, "-c", _LOAD], stdin=subprocess.PIPE) for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    whole = [path for method, path, part in hub.requests if method == "GET" and not part]
    assert sorted(whole) == sorted({*whole})
    assert {*SHARDS} < {*whole}


def test_a_folder_and_a_file_are_read_by_their_paths(hub: Hub) -> None:
    below = {f"text/encoder/{path}": data for path, data in files_of_model(2).items()}
    commit = hub.publish("org/parts", {"README.md": b"", **below})
    require_tensors(cordwood.load("hf://org/parts/text/encoder"), 2)
    require_tensors(cordwood.load(f"hf://org/parts@{commit}/text/encoder/"), 2)
    (tensor,) = cordwood.load(f"hf://org/parts/text/encoder/{SHARDS[0]}").values()
    np.testing.assert_array_equal(tensor, TENSORS["embed.weight"] * 2)
    with pytest.raises(NotACheckpointError, match=r"found README\.md, text\. .*hf://org/parts/"):
        cordwood.load("hf://org/parts")


@pytest.mark.parametrize("format", ["packs", "zarr", "msgpack"])
def test_a_checkpoint_of_cordwood_is_read(hub: Hub, tmp_path: Path, format: str) -> None:
    tree = {"a": {"w": TENSORS["embed.weight"]}, "step": 7}
    folder = tmp_path / "saved"
    folder.mkdir()
    path = folder / ("tree.msgpack" if format == "msgpack" else "tree")
    cordwood.save(path, tree, format=format)
    hub.publish_folder("org/saved", folder)
    url = f"hf://org/saved/{path.name}"
    assert cordwood.diff(url, tree).equal
    assert cordwood.verify(url).leaves == 2
    if format == "packs":
        cordwood.copy(url, tmp_path / "copy")
        assert cordwood.diff(tmp_path / "copy", tree).equal


@pytest.mark.parametrize("layout", ["v0-zarr2-ocdbt", "v0-zarr3-files"])
def test_a_checkpoint_of_orbax_is_read(hub: Hub, layout: str) -> None:
    hub.publish_folder("org/orbax", ORBAX / layout)
    assert cordwood.detect("hf://org/orbax").format == "orbax"
    assert cordwood.diff("hf://org/orbax", ORBAX / layout).equal


def test_a_path_that_leaves_the_model_is_not_listed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(safetensors_bytes(TENSORS))
    up = "../" * 6 + str(tmp_path / "secret.safetensors")
    hub.publish("org/hostile", {up: b"", "model.safetensors": safetensors_bytes(TENSORS)})
    with pytest.raises(UnsupportedFormatError, match="none of them empty"):
        cordwood.load(f"hf://org/hostile/{up}")
    listing = list_model(HubAddress("org/hostile", "main", ""), "hf://org/hostile")
    assert list(listing.sizes) == ["model.safetensors"]


def test_a_pack_that_was_uploaded_in_part_is_refused(hub: Hub, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "saved", TENSORS)
    (pack,) = (tmp_path / "saved").glob("data-*")
    pack.unlink()
    hub.publish_folder("org/saved", tmp_path / "saved")
    with pytest.raises(CorruptionError, match=r"data-.* is missing.*upload it again"):
        cordwood.load("hf://org/saved")


def test_a_shard_that_is_missing_on_the_hub_is_named(hub: Hub) -> None:
    files = files_of_model()
    del files[SHARDS[1]]
    hub.publish("org/partial", files)
    with pytest.raises(IncompleteCheckpointError, match=rf"hf://org/partial has no {SHARDS[1]}"):
        cordwood.load("hf://org/partial")


# The other calls


def test_convert_diff_verify_and_detect_take_a_model(hub: Hub, tmp_path: Path) -> None:
    done = cordwood.convert("hf://org/toy", tmp_path / "copy", format="hugging_face")
    assert sorted(done.files) == ["README.md", "config.json"]
    assert done.left_out == ("code.py",)
    assert (tmp_path / "copy/config.json").read_bytes() == b'{"model_type": "toy"}'
    assert cordwood.diff("hf://org/toy", tmp_path / "copy").equal
    assert cordwood.verify("hf://org/toy").leaves == 3
    assert cordwood.detect("hf://org/toy").format == "safetensors-shards"
    assert "code.py" not in hub.fetched()


@pytest.mark.parametrize(
    "write",
    [
        lambda url: cordwood.save(url, TENSORS),
        lambda url: cordwood.save(f"{url}/model.safetensors", TENSORS),
        lambda url: cordwood.save_async(url, TENSORS).wait(),
        lambda url: cordwood.convert(url, "hf://org/other"),
        lambda url: cordwood.convert(url, "hf://org/other", format="hugging_face"),
        lambda url: cordwood.gc(url),
        lambda url: cordwood.CheckpointManager(url),
        lambda url: cordwood.StepReader(url),
    ],
)
def test_writing_to_the_hub_is_refused(hub: Hub, write: Callable[[str], object]) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"hf:// can only be read.*upload_folder"):
        write("hf://org/toy")


def test_copying_to_the_hub_is_refused(hub: Hub, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "saved", TENSORS)
    with pytest.raises(UnsupportedFormatError, match="hf:// can only be read"):
        cordwood.copy(tmp_path / "saved", "hf://org/toy")


# Errors, each with what it proposes


def test_a_private_model_asks_for_a_token_and_loads_with_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models["org/toy"].private_to = "hf_secret"
    with pytest.raises(FileNotFoundError, match="no such model; if it is private, set HF_TOKEN"):
        cordwood.load("hf://org/toy")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    require_tensors(cordwood.load("hf://org/toy"))


@pytest.mark.parametrize("by", ["HF_TOKEN", "login"])
def test_a_gated_model_says_how_to_give_a_token(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    hub.models["org/toy"].private_to, hub.models["org/toy"].is_gated = "hf_secret", True
    with pytest.raises(StorageError, match=r"gated: accept its conditions.*HF_TOKEN.*hf auth"):
        cordwood.load("hf://org/toy")
    if by == "login":
        cache.mkdir(exist_ok=True)
        (cache / "token").write_text("hf_secret")  # as `hf auth login` does
    else:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    require_tensors(cordwood.load("hf://org/toy"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://org/nope", "the hub shows no such model"),
        ("hf://org/toy@nope", "no such revision; expected the name of a branch or tag"),
        ("hf://org/toy/nope", "the model has no such file or folder"),
    ],
)
def test_what_is_not_on_the_hub_is_named(hub: Hub, url: str, message: str) -> None:
    for call in (cordwood.load, cordwood.open, cordwood.detect, cordwood.verify):
        with pytest.raises(FileNotFoundError, match=message) as caught:
            call(url)
        assert caught.value.filename == url


def test_what_is_not_in_the_cache_cannot_be_read_offline_until_it_was_loaded_once(
    hub: Hub, go_offline: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(StorageError, match=r"not in the cache.*load it once with a network"):
            cordwood.load("hf://org/toy")
    cordwood.load("hf://org/toy")
    go_offline()
    require_tensors(cordwood.load("hf://org/toy"))
    require_tensors(cordwood.load("hf://org/toy@main"))


def test_a_model_in_the_cache_loads_while_the_hub_is_down(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tensors(cordwood.load("hf://org/toy"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    require_tensors(cordwood.load("hf://org/toy"))
    with pytest.raises(StorageError, match="the hub cannot be reached"):
        cordwood.load("hf://org/other")


def test_a_model_in_the_cache_loads_while_the_hub_fails(hub: Hub) -> None:
    require_tensors(cordwood.load("hf://org/toy"))
    hub.status = 500
    require_tensors(cordwood.load("hf://org/toy"))
    with pytest.raises(StorageError, match="the hub answered 500"):
        cordwood.load("hf://org/other")


def test_of_a_model_that_is_in_the_cache_in_part_that_part_loads_offline(
    hub: Hub, go_offline: Callable[[], None]
) -> None:
    cordwood.load("hf://org/toy", select="layers.1.*")
    go_offline()
    assert list(cordwood.load("hf://org/toy", select="layers.1.*")) == ["layers.1.weight"]
    with pytest.raises(UnsupportedFormatError, match=r"not in the cache") as caught:
        cordwood.load("hf://org/toy")
    assert "2 leaves cannot be read" in str(caught.value)
    select = ["**", "!embed.weight", "!layers.0.weight"]
    assert "load the others with select=" in str(caught.value)
    assert list(cordwood.load("hf://org/toy", select=select)) == ["layers.1.weight"]


@pytest.mark.parametrize("path", ["text", SHARDS[0]])
def test_a_part_that_is_not_in_the_cache_is_not_called_missing(
    hub: Hub, go_offline: Callable[[], None], path: str
) -> None:
    cordwood.load("hf://org/toy", select="layers.1.*")
    go_offline()
    with pytest.raises(StorageError, match="not in the cache"):
        cordwood.load(f"hf://org/toy/{path}")


def test_a_damaged_file_of_the_cache_is_named_and_fetched_again_once_removed(
    hub: Hub, cache: Path
) -> None:
    cordwood.load("hf://org/toy")
    (link,) = cache.rglob(SHARDS[1])
    link.resolve().write_bytes(b"cut short")
    with pytest.raises(CorruptionError, match=r"the cache is damaged; remove this file") as caught:
        cordwood.load("hf://org/toy")
    named = Path(str(caught.value).partition(": ")[0])
    named.resolve().unlink()
    named.unlink()
    require_tensors(cordwood.load("hf://org/toy"))


def test_without_huggingface_hub_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedFormatError, match=r"pip install 'cordwood\[hub\]'"):
        cordwood.load("hf://org/toy")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["hub"]
    assert requirement.startswith("huggingface_hub")


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://org/model", ("org/model", "main", "")),
        ("HF://org/model.v2/", ("org/model.v2", "main", "")),
        ("hf://org/model@v1", ("org/model", "v1", "")),
        ("hf://org/model@refs/pr/12/sub/x", ("org/model", "refs/pr/12", "sub/x")),
        ("hf://org/model@a%2Fb/sub", ("org/model", "a/b", "sub")),
        ("hf://org/model/sub@2/x.safetensors", ("org/model", "main", "sub@2/x.safetensors")),
    ],
)
def test_an_address_has_a_model_a_revision_and_a_path(
    text: str, address: tuple[str, str, str]
) -> None:
    url = parse_location(text)
    assert isinstance(url, Url)
    assert parse_hub_url(url) == HubAddress(*address)


@pytest.mark.parametrize(
    "text",
    ["hf://gpt2", "hf://datasets/org/name", "hf://spaces/org/x", "hf://o@v/m", "hf://org/model@"],
)
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"expected a model of the hub, as in hf://"):
        cordwood.load(text)


def test_latest_and_best_are_names_of_models(hub: Hub) -> None:
    hub.publish("org/latest", files_of_model(3))
    require_tensors(cordwood.load("hf://org/latest"), 3)
