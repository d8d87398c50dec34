"""Migrations: a checkpoint from before a change of the tree is loaded, and so are later ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal
from tests.loading.matching.test_moved_subtrees import CHANGES, adam, numbered, state_of
from tests.loading.tree_writers import WRITERS, Writer

WRAP = {"rename": {"opt/**": "opt/1/**"}}
TO_MULTI_STEPS = {"rename": {"opt/**": "opt/inner_opt_state/**"}, "missing": "keep"}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("reader", [False, True])
def test_a_run_goes_on_with_another_optimizer_and_restarts_again(
    name: str, reader: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change = CHANGES[name]
    root = tmp_path / "run"
    stored = numbered(state_of(adam()))
    options: Any = {"like": state_of(change.wrapper()), "migrations": [change.wrap]}
    with cordwood.CheckpointManager(root) as manager:
        manager.save(1, stored)
    for step in (1, 2, 3):
        caplog.clear()
        with cordwood.CheckpointManager(root) as manager, caplog.at_level(logging.INFO):
            restored = (cordwood.StepReader(root) if reader else manager).restore(**options)
            assert restored is not None
            assert restored.step == step
            assert ("migrations[0] = {'" in caplog.text) == (step == 1)
            assert_trees_equal(change.inner(restored.tree["opt"]), stored["opt"])
            manager.save(step + 1, restored.tree)


def test_the_first_migration_that_fits_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = numbered(state_of(adam()))
    cordwood.save(tmp_path / "a", stored)
    migrations: Any = [TO_MULTI_STEPS, WRAP, {"missing": "keep", "extra": "ignore"}]
    like = state_of(optax.chain(optax.clip(1.0), adam()))
    with caplog.at_level(logging.INFO):
        loaded = cordwood.load(tmp_path / "a", like=like, migrations=migrations)
    assert_trees_equal(loaded["opt"][1], stored["opt"])
    assert "migrations[1] = {'rename': {'opt/**': 'opt/1/**'}}" in caplog.text
    with cordwood.open(tmp_path / "a") as checkpoint:
        assert_trees_equal(checkpoint.load(like=like, migrations=migrations), loaded)


@pytest.mark.parametrize("format", WRITERS)
def test_migrations_of_every_format(format: str, tmp_path: Path) -> None:
    write: Writer = WRITERS[format]
    path = write(tmp_path, {"a": jnp.arange(3.0), "b": (jnp.ones(2),)})
    migrations: Any = [{"rename": {"x": "y"}}, {"select": "b", "rename": {"b": "c"}}]
    loaded = cordwood.load(path, like={"c": (jnp.zeros(2),)}, migrations=migrations)
    assert_trees_equal(loaded, {"c": (jnp.ones(2),)})


def test_what_fits_is_not_migrated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = {"a": jnp.ones(2), "b": jnp.zeros(2)}
    cordwood.save(tmp_path / "a", tree)
    with caplog.at_level(logging.INFO):
        swap: Any = [{"rename": {"a": "b", "b": "a"}}]
        assert_trees_equal(cordwood.load(tmp_path / "a", like=tree, migrations=swap), tree)
    assert "migrations" not in caplog.text


def test_a_migration_takes_the_place_of_the_options_of_the_call(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"a": jnp.ones(2), "b": jnp.zeros(2)})
    options: Any = {"select": "a", "migrations": [{"rename": {"a": "x"}}]}
    loaded = cordwood.load(tmp_path / "a", like={"x": jnp.zeros(2)}, **options)
    assert_trees_equal(loaded, {"x": jnp.ones(2)})
    options["migrations"] = [{"select": "b", "rename": {"b": "x"}}]
    loaded = cordwood.load(tmp_path / "a", like={"x": jnp.ones(2)}, **options)
    assert_trees_equal(loaded, {"x": jnp.zeros(2)})


def test_the_error_says_what_each_migration_failed_with(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"a": np.ones(2), "b": np.ones(1)})
    migrations: Any = [{"rename": {"x": "c"}}, {"rename": {"a": "c"}, "extra": "ignore"}]
    with pytest.raises(MismatchError) as error:
        cordwood.load(tmp_path / "a", like={"c": np.ones(3)}, migrations=migrations)
    text = str(error.value)
    lines = [
        "/a does not fit `like`, neither as it is nor by any of migrations=:\nas it is:\n",
        "\n    c: not in the checkpoint",
        "\nmigrations[0] = {'rename': {'x': 'c'}}:\n  rename matches no leaf of ",
        "\nmigrations[1] = {'rename': {'a': 'c'}, 'extra': 'ignore'}:\n  1 leaf of ",
        "\n    c: expected float64[3], found float64[2]",
    ]
    positions = [text.index(line) for line in lines]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("migrations", "kind", "message"),
    [
        ({"rename": {"a": "b"}}, TypeError, "migrations: expected a list of dicts of options"),
        (["a"], TypeError, r"migrations\[0\]: expected a dict of options, found 'a'"),
        (
            [{}, {"renam": {}}],
            TypeError,
            r"\[1\]: .* found 'renam'; did you mean 'rename'",
        ),
        ([{"missing": "kep"}], ValueError, 'missing=\'kep\': expected "error" or "keep"'),
        ([{"mesh": None}], TypeError, r"migrations\[0\]: .* found 'mesh'"),
    ],
)
def test_wrong_migrations_are_refused_though_the_checkpoint_fits(
    migrations: Any, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    cordwood.save(tmp_path / "a", {"a": np.ones(2)})
    with pytest.raises(kind, match=message):
        cordwood.load(tmp_path / "a", like={"a": np.ones(2)}, migrations=migrations)


def test_migrations_need_a_like(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"a": np.ones(2)})
    with pytest.raises(ValueError, match=r"migrations are tried where .* `like`: pass one"):
        cordwood.load(tmp_path / "a", migrations=[{"rename": {"a": "b"}}])


def test_damage_is_no_reason_to_migrate(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a.safetensors", {"a": np.arange(100.0)})
    data = bytearray((tmp_path / "a.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(cordwood.errors.CorruptionError):
        cordwood.load(
            tmp_path / "a.safetensors",
            like={"a": np.zeros(100)},
            migrations=[{"missing": "keep", "extra": "ignore"}],
        )
