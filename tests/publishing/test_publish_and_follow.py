"""WeightPublisher and WeightFollower at every kind of location."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood as cw
from cordwood.deltas.held_version import HeldVersion
from cordwood.deltas.load_version import load_version
from cordwood.deltas.stored_versions import StoredVersions
from cordwood.errors import CorruptionError, MismatchError, PendingSaveError, StepError
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.loading.load_options import LoadOptions
from cordwood.manager.step_summaries import summarize_steps
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage import syscalls
from cordwood.storage.locations import LocalPath
from cordwood.storage.open_step_storage import open_step_listing
from cordwood.testing import assert_trees_equal
from tests.faults.recorder import RecordingSystem
from tests.publishing.published import tree_of
from tests.storage.stores import new_url

RULES = storage_of(DEFAULT).RULES


@pytest.fixture(params=["folder", "memory", "moto", "gs"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "weights")
        return
    with new_url(request.param, monkeypatch) as url:
        yield f"{url}/weights"


def versions_at(location: str) -> dict[int, bool]:
    """Return the numbers of the versions, each with True if it is whole."""
    result = {}
    for number in cw.StepReader(location).steps():
        with cw.open(f"{location}/{number}") as checkpoint:
            record = json.loads(checkpoint.metadata["cordwood-version"])
            result[number] = record["whole"]
    return result


def test_followers_get_each_version_bit_for_bit(location: str) -> None:
    publisher = cw.WeightPublisher(location)
    early, lazy = cw.WeightFollower(location), cw.WeightFollower(location)
    for version in range(1, 8):
        publisher.publish(version, tree_of(version)).wait()
        assert_trees_equal(early.update(), tree_of(version))
        if version in (2, 6):
            assert_trees_equal(lazy.update(), tree_of(version))
    late = cw.WeightFollower(location)
    assert_trees_equal(late.update(), tree_of(7))
    assert early.version == late.version == 7
    assert versions_at(location) == {number: number == 1 for number in range(1, 8)}


def test_a_whole_version_is_a_checkpoint_of_the_tree(location: str) -> None:
    publisher = cw.WeightPublisher(location, full_every=2)
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
    assert versions_at(location) == {1: True, 2: False, 3: True}
    assert_trees_equal(cw.load(f"{location}/3"), tree_of(3))
    assert_trees_equal(cw.WeightFollower(location).update(), tree_of(3))
    for version in (1, 2, 3):
        assert cw.verify(f"{location}/{version}").unverified_bytes == 0


def test_old_versions_are_removed(location: str) -> None:
    publisher = cw.WeightPublisher(location, full_every=3, keep=2)
    for version in range(1, 12):
        publisher.publish(version, tree_of(version)).wait()
        at = versions_at(location)
        assert {version, max(1, version - 1)} <= set(at)
        assert at[min(at)]
        assert len(at) <= 4
    assert set(at) == {10, 11}
    assert_trees_equal(cw.WeightFollower(location).update(), tree_of(11))


def test_a_follower_whose_base_was_removed_loads_the_tree_whole(location: str) -> None:
    publisher = cw.WeightPublisher(location, full_every=2, keep=1)
    publisher.publish(1, tree_of(1)).wait()
    follower = cw.WeightFollower(location)
    first = follower.update()
    for version in range(2, 7):
        publisher.publish(version, tree_of(version)).wait()
    assert_trees_equal(follower.update(), tree_of(6))
    assert_trees_equal(first, tree_of(1))


def test_a_follower_needs_no_whole_version_once_it_has_one(location: str) -> None:
    publisher, follower = cw.WeightPublisher(location, full_every=2), cw.WeightFollower(location)
    large = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    for version in range(1, 6):
        large[version] += 1
        publisher.publish(version, {"w": large}).wait()
        held = follower._held
        assert_trees_equal(follower.update(), {"w": large})
        assert follower._held is held or held is None
    assert versions_at(location) == {1: True, 2: False, 3: True, 4: False, 5: True}


def test_a_tree_is_loaded_whole_where_the_deltas_are_longer(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path, full_every=3), cw.WeightFollower(tmp_path)
    rng = np.random.default_rng(0)
    large = rng.integers(0, 256, 30_000, np.uint8)
    for version in range(1, 5):
        changed = rng.random(len(large)) < 0.4
        large[changed] = rng.integers(0, 256, int(changed.sum()), np.uint8)
        publisher.publish(version, {"w": large}).wait()
        if version == 1:
            follower.update()
    held = follower._held
    assert_trees_equal(follower.update(), {"w": large})
    assert follower._held is not held


def test_arrays_that_were_returned_never_change(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path, to="numpy")
    publisher.publish(1, tree_of(1)).wait()
    first = follower.update()
    first["opt"][0][:] = 7  # they are the caller's
    publisher.publish(2, tree_of(2)).wait()
    second = follower.update()
    assert (first["opt"][0] == 7).all()
    np.testing.assert_array_equal(second["opt"][0], tree_of(2)["opt"][0])


def test_the_tree_may_change_once_publish_returns(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    tree: dict[str, Any] = {"n": np.zeros(1000), "j": jnp.zeros(1000)}
    for version in range(1, 4):
        tree["n"][:] = version
        tree["j"] = tree["j"] + 1
        pending = publisher.publish(version, tree)
        tree["n"][:] = -1
        tree["j"].delete()
        tree["j"] = jnp.full(1000, float(version))
        pending.wait()
    made = cw.WeightFollower(tmp_path, to="numpy").update()
    assert (made["n"] == 3).all()
    assert (made["j"] == 3).all()


def test_nothing_new_returns_the_tree_of_the_caller(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    publisher.publish(1, tree_of(1)).wait()
    tree = follower.update()
    assert follower.update(tree) is tree
    again = follower.update()
    assert again is not tree
    assert_trees_equal(again, tree)


def test_a_part_of_the_tree_reads_no_more(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    follower = cw.WeightFollower(tmp_path, select="lora/**")
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
        assert_trees_equal(follower.update(), {"lora": tree_of(version)["lora"]})
    assert follower._held is not None
    assert len(follower._held._tiles) == 1


def test_other_dtypes_names_and_kinds(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    like = {"model": {"w": np.zeros((64, 48), np.float32)}}
    follower = cw.WeightFollower(
        tmp_path, like=like, select="params/w", rename={"params": "model"}, cast=True, to="numpy"
    )
    for version in (1, 2):
        publisher.publish(version, tree_of(version)).wait()
        expected = np.asarray(tree_of(version)["params"]["w"]).astype(np.float32)
        np.testing.assert_array_equal(follower.update()["model"]["w"], expected)


def test_a_recipe_that_stacks_and_transposes(tmp_path: Path) -> None:
    from cordwood.recipes import Recipe, Rule

    recipe = Recipe([Rule("layers.{l}.w", "o i", "layers/w", "l i o")], sizes={"l": 2})
    publisher = cw.WeightPublisher(tmp_path)
    follower = cw.WeightFollower(tmp_path, recipe=recipe, to="numpy")
    for version in (1, 2):
        tree = {f"layers.{n}.w": np.arange(6.0).reshape(2, 3) + n + version for n in range(2)}
        publisher.publish(version, tree).wait()
        expected = np.stack([tree[f"layers.{n}.w"].T for n in range(2)])
        np.testing.assert_array_equal(follower.update()["layers"]["w"], expected)


def test_another_tree_is_published_whole(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    trees: list[Any] = [
        {"w": np.zeros(10)},
        {"w": np.zeros(11)},
        {"w": np.zeros(11, np.float32)},
        {"w": np.zeros(11, np.float32), "b": 1},
        {},
    ]
    for version, tree in enumerate(trees, start=1):
        publisher.publish(version, tree).wait()
        assert_trees_equal(follower.update(), tree)
    assert all(versions_at(str(tmp_path)).values())


def test_noise_is_published_whole(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    rng = np.random.default_rng(0)
    for version in (1, 2, 3):
        tree = {"w": rng.integers(0, 2**32, 5000, np.uint32)}
        publisher.publish(version, tree).wait()
        assert_trees_equal(follower.update(), tree)
    assert all(versions_at(str(tmp_path)).values())


def test_numbers_grow(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    publisher.publish(5, {"w": 1}).wait()
    for number in (5, 4):
        with pytest.raises(StepError, match="version 5 was published"):
            publisher.publish(number, {"w": 2})
    other = cw.WeightPublisher(tmp_path)
    with pytest.raises(StepError, match="has the versions 5 already"):
        other.publish(5, {"w": 2})
    other.publish(6, {"w": 2}).wait()
    assert cw.WeightFollower(tmp_path).update() == {"w": 2}
    with pytest.raises(StepError, match="has the versions 6 already"):
        publisher.publish(6, {"w": 3})


def test_an_old_number_is_refused_at_once_and_is_no_matter_of_other_publishers(
    location: str,
) -> None:
    other = cw.WeightPublisher(f"{location}/other")
    cw.WeightPublisher(f"{location}/weights").publish(7, {"w": 1}).wait()
    late = cw.WeightPublisher(f"{location}/weights")
    with pytest.raises(StepError, match=r"larger number than 7, found 5"):
        late.publish(5, {"w": 2})
    other.publish(1, {"w": 3}).wait()
    late.publish(8, {"w": 4}).wait()
    assert cw.WeightFollower(f"{location}/weights").update() == {"w": 4}


def test_a_failure_that_nobody_asked_about_is_raised_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "1").write_text("a file is in the way")
    other = cw.WeightPublisher(tmp_path / "other")
    cw.WeightPublisher(tmp_path / "weights").publish(1, {"w": 1})._wait_quietly()
    with pytest.raises(PendingSaveError, match="Nothing was begun now"):
        other.publish(1, {"w": 2})
    other.publish(1, {"w": 2}).wait()


def test_a_publisher_that_starts_again_begins_with_a_whole_version(tmp_path: Path) -> None:
    follower = cw.WeightFollower(tmp_path)
    for version in (1, 2, 3):
        cw.WeightPublisher(tmp_path).publish(version, tree_of(version)).wait()
        assert_trees_equal(follower.update(), tree_of(version))
    assert versions_at(str(tmp_path)) == {1: True, 2: True, 3: True}


def test_a_version_that_failed_is_left_out(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    publisher.publish(1, tree_of(1)).wait()
    (tmp_path / "2").write_text("a file is in the way")
    with pytest.raises(OSError, match="2"):
        publisher.publish(2, tree_of(2)).wait()
    publisher.publish(3, tree_of(3)).wait()
    assert_trees_equal(follower.update(), tree_of(3))
    assert versions_at(str(tmp_path)) == {1: True, 3: False}
    (tmp_path / "4").write_text("a file is in the way")
    publisher.publish(4, tree_of(4))
    with pytest.raises(PendingSaveError):
        publisher.publish(5, tree_of(5)).wait()
    publisher.publish(6, tree_of(6)).wait()
    assert_trees_equal(follower.update(), tree_of(6))


def test_a_version_that_took_the_number_of_a_removed_one_is_loaded(location: str) -> None:
    publisher, follower = cw.WeightPublisher(location), cw.WeightFollower(location)
    for version in (1, 2):
        publisher.publish(version, tree_of(version)).wait()
    tree = follower.update()
    cw.CheckpointManager(location).delete(2)
    cw.WeightPublisher(location).publish(2, tree_of(20)).wait()
    assert_trees_equal(follower.update(tree), tree_of(20))
    assert follower.update(tree) is tree


def test_a_second_publisher_is_noticed(location: str) -> None:
    first = cw.WeightPublisher(location)
    for version in (1, 2):
        first.publish(version, tree_of(version)).wait()
    second = cw.WeightPublisher(location)
    second.publish(5, tree_of(50)).wait()
    with pytest.raises(StepError, match=r"version 5 is of another publisher: expected 2 as"):
        first.publish(6, tree_of(6)).wait()
    second.publish(6, tree_of(60)).wait()
    assert_trees_equal(cw.WeightFollower(location).update(), tree_of(60))


def test_the_version_after_the_removal_of_one_holds_the_tree(location: str) -> None:
    publisher, follower = cw.WeightPublisher(location), cw.WeightFollower(location)
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
    cw.CheckpointManager(location).delete(2)
    publisher.publish(4, tree_of(4)).wait()
    assert_trees_equal(follower.update(), tree_of(4))
    assert versions_at(location) == {1: True, 3: False, 4: True}


def test_a_delta_has_no_index_for_other_readers(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path, full_every=2)
    for version in (1, 2, 3):
        publisher.publish(version, {"w": np.arange(9.0) * version}).wait()
        cw.verify(tmp_path / f"{version}")
    name = "model.safetensors.index.json"
    assert [(tmp_path / f"{version}" / name).exists() for version in (1, 2, 3)] == [
        True,
        False,
        True,
    ]
    assert list(json.loads((tmp_path / "3" / name).read_text())["weight_map"]) == ["w"]


def test_steps_of_a_run_are_never_removed(location: str) -> None:
    with cw.CheckpointManager(location) as manager:
        for step in (1, 2):
            manager.save(step, tree_of(step))
    with pytest.raises(StepError, match=r"2 was not saved by a WeightPublisher: .* another one"):
        cw.WeightPublisher(location).publish(3, tree_of(3)).wait()
    publisher = cw.WeightPublisher(f"{location}-2", full_every=1, keep=1)
    publisher.publish(1, tree_of(1)).wait()
    cw.save(f"{location}-2/2", tree_of(2))  # in between, and of another call
    for version in (3, 4, 5):
        publisher.publish(version, tree_of(version)).wait()
    assert cw.StepReader(f"{location}-2").steps() == [2, 5]
    assert_trees_equal(cw.load(f"{location}-2/2"), tree_of(2))


def test_a_tile_that_was_read_as_a_gap_is_not_taken_for_what_is_fetched_later(
    tmp_path: Path,
) -> None:
    """Reads go over the tiles between those that they need, which are not fetched for them."""
    tree = {name: np.full(4, n + 1.0) for n, name in enumerate("abc")}
    cw.WeightPublisher(tmp_path).publish(1, tree).wait()
    versions = StoredVersions(open_step_listing(LocalPath(str(tmp_path)), RULES))
    with ExitStack() as stack:
        whole = versions.open(1, stack)
        held = HeldVersion(whole)
        held.fetch_from(whole, [])
        reader = held.reader()
        assert reader.files[0].read(0, 96) == bytes(96)
        (array,) = reader.read(reader.index.leaves[1:2])
        np.testing.assert_array_equal(array, tree["b"])


def test_wait_for(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    with pytest.raises(FileNotFoundError, match="wait_for"):
        follower.update()
    with pytest.raises(TimeoutError, match="there is none"):
        follower.wait_for(1, timeout_seconds=0)
    pending = publisher.publish(3, {"w": 1})
    assert follower.wait_for(2, timeout_seconds=60, poll_seconds=0.01) == 3
    pending.wait()
    with pytest.raises(TimeoutError, match="the newest is 3"):
        follower.wait_for(4, timeout_seconds=0)


def test_a_damaged_delta_is_never_applied(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    for version in (1, 2):
        publisher.publish(version, tree_of(version)).wait()
    tree = follower.update()
    publisher.publish(3, tree_of(3)).wait()
    (pack,) = (tmp_path / "3").glob("data-*")
    data = bytearray(pack.read_bytes())
    data[-20] ^= 4
    pack.write_bytes(bytes(data))
    with pytest.raises(CorruptionError):
        follower.update()
    assert follower.version == 2
    assert_trees_equal(tree, tree_of(2))
    publisher.publish(4, tree_of(4)).wait()  # a delta of version 3, so of no use here
    with pytest.raises(CorruptionError):
        follower.update()
    cw.WeightPublisher(tmp_path).publish(5, tree_of(5)).wait()
    assert_trees_equal(follower.update(), tree_of(5))


def test_a_delta_of_another_base_is_never_applied(tmp_path: Path) -> None:
    """Version 2 is that of another run, which has the same numbers and the same types."""
    root, other_root = tmp_path / "root", tmp_path / "other"
    for path, shift in ((root, 0), (other_root, 10)):
        publisher = cw.WeightPublisher(path)
        for version in (1, 2):
            publisher.publish(version, tree_of(version + shift)).wait()
    follower = cw.WeightFollower(root)
    assert_trees_equal(follower.update(), tree_of(2))
    shutil.rmtree(root / "2")
    os.rename(other_root / "2", root / "2")
    with pytest.raises(CorruptionError, match="another version"):
        cw.WeightFollower(root).update()


def test_a_missing_version_in_between(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    follower, behind = cw.WeightFollower(tmp_path), cw.WeightFollower(tmp_path)
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
        if version < 3:
            follower.update()
        if version < 2:
            behind.update()
    shutil.rmtree(tmp_path / "2")
    assert_trees_equal(follower.update(), tree_of(3))
    with pytest.raises(FileNotFoundError, match=r"version 3 is made from it.*wait_for\(4\)"):
        behind.update()
    assert behind.version == 1
    publisher.publish(4, tree_of(4)).wait()
    behind.wait_for(4)
    assert_trees_equal(behind.update(), tree_of(4))


def test_a_like_that_does_not_fit(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    publisher.publish(1, {"w": np.zeros(3)}).wait()
    with pytest.raises(MismatchError, match="w"):
        cw.WeightFollower(tmp_path, like={"w": np.zeros(4)}).update()
    with pytest.raises(ValueError, match="mmap"):
        cw.WeightFollower(tmp_path, mmap=True)


def test_a_checkpoint_that_was_not_published(tmp_path: Path) -> None:
    cw.save(tmp_path / "1", {"w": np.zeros(3)})
    with pytest.raises(MismatchError, match="holds steps of a run") as caught:
        cw.WeightFollower(tmp_path).update()
    remedy = str(caught.value).partition("a run. ")[2].partition(" reads")[0]
    assert_trees_equal(eval(remedy, {"cordwood": cw}).restore().tree, {"w": np.zeros(3)})


@pytest.mark.parametrize("name", ["full_every", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3"])
def test_wrong_numbers(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        cw.WeightPublisher(tmp_path, **{name: value})


def test_keys_come_back_as_keys(tmp_path: Path) -> None:
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    for version in (1, 2):
        publisher.publish(version, {"key": jax.random.key(version)}).wait()
        made = follower.update()["key"]
        assert jax.random.bits(made) == jax.random.bits(jax.random.key(version))


def test_a_follower_writes_nothing(tmp_path: Path) -> None:
    """So a follower that is killed at any moment leaves everything as it was."""
    publisher, follower = cw.WeightPublisher(tmp_path), cw.WeightFollower(tmp_path)
    recorder = RecordingSystem(str(tmp_path))
    for version in (1, 2):
        publisher.publish(version, tree_of(version)).wait()
        with syscalls.override(recorder):
            follower.update()
    assert recorder.trace.effects == []


def test_each_version_is_loaded_by_its_number(location: str) -> None:
    publisher = cw.WeightPublisher(location, full_every=3)
    for version in range(1, 6):
        publisher.publish(version, tree_of(version)).wait()
    for version in range(1, 6):
        tree = tree_of(version)
        assert_trees_equal(cw.load(f"{location}/{version}"), tree)
        assert_trees_equal(cw.load(f"{location}/{version}", like=tree), tree)
    like = {"params": tree_of(3)["params"]}
    assert_trees_equal(cw.load(f"{location}/3", like=like, select="params"), like)
    with pytest.raises(ValueError, match="no file to map; leave it out"):
        cw.load(f"{location}/3", mmap=True)
    with pytest.raises(MismatchError, match="params/other: not in the checkpoint"):
        cw.load(f"{location}/3", like={"params": {"other": 1}}, extra="ignore")


def test_a_version_is_loaded_by_any_path_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = cw.WeightPublisher(tmp_path / "weights")
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
    (tmp_path / "chosen").symlink_to("weights/2")
    assert_trees_equal(cw.load(tmp_path / "chosen"), tree_of(2))
    assert_trees_equal(cw.load(tmp_path / "weights" / "latest"), tree_of(3))
    monkeypatch.chdir(tmp_path / "weights" / "2")
    assert_trees_equal(cw.load("."), tree_of(2))


def test_a_version_is_loaded_only_from_the_versions_that_it_was_made_of(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    for version in (1, 2, 3):
        publisher.publish(version, tree_of(version)).wait()
    shutil.copytree(tmp_path / "3", tmp_path / "elsewhere" / "3")
    with pytest.raises(FileNotFoundError, match="version 3 is made from it"):
        cw.load(tmp_path / "elsewhere" / "3")
    shutil.copytree(tmp_path / "3", tmp_path / "renamed")
    with pytest.raises(MismatchError, match="expected its number as its name"):
        cw.load(tmp_path / "renamed")
    with pytest.raises(FileNotFoundError):  # removed since it was looked at
        load_version(LocalPath(str(tmp_path / "4")), None, LoadOptions())
    shutil.copytree(tmp_path / "1", tmp_path / "elsewhere" / "2")
    with pytest.raises(CorruptionError, match="is another version than the next one"):
        cw.load(tmp_path / "elsewhere" / "3")


def test_a_manager_says_how_a_delta_is_loaded(tmp_path: Path) -> None:
    publisher = cw.WeightPublisher(tmp_path)
    for version in (1, 2):
        publisher.publish(version, tree_of(version)).wait()
    message = "is a delta: expected a tree, found the changes of version 1"
    with pytest.raises(MismatchError, match=message) as caught:
        cw.StepReader(tmp_path).restore(step=2)
    remedy = str(caught.value).partition("version 1. ")[2].partition(" ")[0]
    assert_trees_equal(eval(remedy, {"cordwood": cw}), tree_of(2))


def test_misspelt_options_of_a_follower_name_the_right_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"slect": "w/**"}
    with pytest.raises(TypeError, match=r"WeightFollower\(\) .* 'slect'; did you mean 'select'"):
        cw.WeightFollower(tmp_path, **options)


def test_a_version_that_newer_ones_need_is_not_removed(location: str) -> None:
    publisher = cw.WeightPublisher(location, full_every=3)
    for version in (1, 2, 3, 4):
        publisher.publish(version, tree_of(version)).wait()
    assert versions_at(location) == {1: True, 2: False, 3: False, 4: True}
    for version in (1, 2):
        with pytest.raises(StepError, match=rf"version {version + 1} holds only .* first \(4\)"):
            plan_removal(f"{location}/{version}")
    for version in (4, 3, 2, 1):
        remove(plan_removal(f"{location}/{version}"))
    assert versions_at(location) == {}


def test_steps_says_who_removes_versions(tmp_path: Path) -> None:
    cw.WeightPublisher(tmp_path).publish(1, tree_of(1)).wait()
    (summary,) = summarize_steps(LocalPath(str(tmp_path)), ["1"])
    assert summary.note == "a version of weights: its WeightPublisher deletes it"
