"""Every remedy that an error of a load proposes is executed here, and works.

A remedy is an option of a call in the text of a message. `test_every_remedy_has_a_row` reads the
messages in the source: a new one needs a function here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError, PrefixError, UnsupportedFormatError
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import ARRAYS_ONLY, WRITERS, Writer
from tests.shardings import mesh_of

SOURCE = Path(cordwood.__file__).parent
OPTIONS = (
    *("select", "rename", "transpose", "cast", "missing", "extra", "like", "to", "mesh"),
    *("prefix", "nest", "migrations", "items", "strict"),
)
IN_A_MESSAGE = re.compile(rf"\b({'|'.join(OPTIONS)})=")

Test: TypeAlias = Callable[[Path, Writer], None]
ROWS: dict[str, tuple[Test, tuple[str, ...]]] = {}
# Texts that name an argument that is wrong, and propose no value for it.
NAMES_AN_ARGUMENT = {
    *("to=", "missing=", "extra=", "cast=", "nest=True: ", " and rename="),
    "cast= makes 64-bit leaves of ",
}
CKPT = Path("a")


def remedy(*parts: str, formats: tuple[str, ...] = tuple(WRITERS)) -> Callable[[Test], Test]:
    """Register the test of messages with these parts, for some formats."""

    def register(test: Test) -> Test:
        for part in parts:
            ROWS[part] = test, formats
        return test

    return register


def error_of(kind: type[Exception], *args: Any, **options: Any) -> str:
    """Return the message of a load that is refused."""
    with pytest.raises(kind) as error:
        cordwood.load(*args, **options)
    return str(error.value)


def proposed(text: str, *, only: str = "") -> dict[str, Any]:
    """Return the options that the last line of a message, or one with a text, proposes."""
    lines = [line for line in text.splitlines() if only in line]
    options = {}
    for match in IN_A_MESSAGE.finditer(lines[-1]):
        rest = lines[-1][match.end() :]
        for stop in range(1, len(rest) + 1):
            try:
                options[match[1]] = ast.literal_eval(rest[:stop])
            except (SyntaxError, ValueError):
                continue
            if rest[0] in "[{\"'(" or not rest[stop : stop + 1].isalnum():
                break
    return options


def refused(*args: Any, only: str = "", **options: Any) -> dict[str, Any]:
    """Return the options that the error of a load proposes."""
    return proposed(error_of(MismatchError, *args, **options), only=only)


KEYED = tuple(
    name for name in WRITERS if name not in ARRAYS_ONLY
)  # hints about containers need keys


@remedy("select=", ", rename={", formats=KEYED)
def a_part_is_the_tree(tmp_path: Path, write: Writer) -> None:
    for number, tree in enumerate([{"o": (jnp.ones(2), [jnp.zeros(3)]), "x": jnp.ones(1)}]):
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, tree)
        options = refused(path, like=tree["o"])
        assert options == {"select": "o", "rename": {"o": ""}}
        assert_trees_equal(cordwood.load(path, like=tree["o"], **options), tree["o"])


@remedy(". Choose one of them by select= and rename=, for example: ", formats=KEYED)
def one_of_several_parts_is_the_tree(tmp_path: Path, write: Writer) -> None:
    tree = {"ema": {"w": (jnp.ones(2),)}, "params": {"w": (jnp.zeros(2),)}}
    path = write(tmp_path, tree)
    options = refused(path, like=tree["ema"], only="for example")
    assert options == {"select": "ema", "rename": {"ema": ""}}
    assert_trees_equal(cordwood.load(path, like=tree["ema"], **options), tree["ema"])


@remedy('rename={"": ', formats=KEYED)
def the_tree_is_a_part_of_like(tmp_path: Path, write: Writer) -> None:
    for number, part in enumerate([{"w": [jnp.ones(2)]}, (jnp.ones(2), {"b": jnp.zeros(1)})]):
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, part)
        for like in ({"params": part}, {"a": [{"b": part}]}):
            options = refused(path, like=like)
            assert_trees_equal(cordwood.load(path, like=like, **options), like)


@remedy(". Choose one of them by rename=, for example: ", formats=KEYED)
def the_tree_is_one_of_several_parts_of_like(tmp_path: Path, write: Writer) -> None:
    """Parameters into a tree with moments of the same names; those stay as they are in `like`."""
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    path = write(tmp_path, jax.tree.map(lambda leaf: leaf + 1, params))
    state = optax.adam(1e-3).init(params)
    for like in ((params, state), {"params": params, "opt_state": state}):
        options = refused(path, like=like)
        assert [*options] == ["rename", "missing"]
        assert options == refused(path, like=like, missing="keep")
        loaded: Any = cordwood.load(path, like=like, **options)
        one, other = loaded if isinstance(like, tuple) else loaded.values()
        assert_trees_equal(one, jax.tree.map(lambda leaf: leaf + 1, params))
        assert_trees_equal(other, state)


def test_parameters_into_a_tuple(tmp_path: Path) -> None:
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    cordwood.save(tmp_path / "a", params)
    like = (jax.tree.map(jnp.zeros_like, params), {"step": jnp.int32(0)})
    options = refused(tmp_path / "a", like=like)
    assert options == {"rename": {"": "0"}, "missing": "keep"}
    assert_trees_equal(cordwood.load(tmp_path / "a", like=like, **options), (params, like[1]))
    shapes = jax.eval_shape(lambda: like)  # which have no values to keep
    assert "rename={" not in error_of(MismatchError, tmp_path / "a", like=shapes)


@remedy("; to continue from ", ", pass rename={", formats=KEYED)
def a_learning_rate_has_become_a_schedule(tmp_path: Path, write: Writer) -> None:
    """Its counter continues with that of Adam; missing="keep" would begin the schedule anew."""
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    stored = {"opt_state": optax.adamw(1e-3).init(params), "params": params}
    path = write(tmp_path, jax.tree.map(lambda leaf: leaf + 7, stored))
    schedule = optax.cosine_decay_schedule(1e-3, 100)
    like = {"opt_state": optax.adamw(schedule).init(params), "params": params}
    options = refused(path, like=like)
    assert [*options] == ["rename"]
    loaded = cordwood.load(path, like=like, **options)
    assert_trees_equal(loaded, jax.tree.map(lambda leaf: leaf + 7, like))


def test_counters_that_may_differ_are_not_mixed(tmp_path: Path) -> None:
    counters = {"a": {"count": jnp.int32(1)}, "b": {"count": jnp.int32(2)}}
    cordwood.save(tmp_path / "a", {"opt": counters})
    like = {"opt": {**counters, "c": {"count": jnp.int32(0)}}}
    assert "rename=" not in error_of(MismatchError, tmp_path / "a", like=like)


@remedy(" have moved: pass rename={", formats=("packs",))
def parts_of_a_chain_have_moved(tmp_path: Path, write: Writer) -> None:
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    parts = [optax.scale_by_adam(), optax.scale_by_schedule(lambda _: 1.0)]
    chains = [parts, [optax.clip(1.0), *parts], [optax.trace(0.9), *parts]]
    plain, clipped, traced = [{"opt": optax.chain(*each).init(params)} for each in chains]
    for number, (stored, like) in enumerate([(plain, clipped), (clipped, plain), (plain, traced)]):
        (folder := tmp_path / str(number)).mkdir()
        stored = jax.tree.map(lambda leaf: leaf + 1, stored)
        path = write(folder, stored)
        options = refused(path, like=like, only="have moved")
        assert ("missing" in options) == (like is traced)
        loaded = cordwood.load(path, like=like, **options)["opt"]
        assert_trees_equal(loaded[-2:], stored["opt"][-2:])


def test_elements_that_may_have_moved_are_not_mixed(tmp_path: Path) -> None:
    params = {"w": jnp.ones(2)}
    adam, schedule = optax.scale_by_adam(), optax.scale_by_schedule(lambda _: 1.0)
    cordwood.save(tmp_path / "a", {"opt": optax.chain(adam, schedule).init(params)})
    like = {"opt": optax.chain(schedule, adam).init(params)}
    text = error_of(MismatchError, tmp_path / "a", like=like)
    assert "elements of opt have other positions than in the checkpoint" in text


def test_a_value_that_no_checkpoint_holds_is_kept_beside_a_missing_leaf(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"a": jnp.ones(2), "c": jnp.ones(1)})
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    like = {"a": jnp.ones(2), "b": shape, "o": object()}
    text = error_of(MismatchError, tmp_path / "a", like=like, missing="keep")
    assert "b: not in the checkpoint" in text


def test_the_advice_of_a_migration_is_not_cut(tmp_path: Path) -> None:
    params = {f"{number}": jnp.ones(2) for number in range(9)}
    cordwood.save(tmp_path / "a", {"opt": _adam().init(params)})
    like = {"opt": optax.apply_if_finite(_adam(), 2).init(params)}
    migrations: Any = [{"missing": "keep"}]
    text = error_of(MismatchError, tmp_path / "a", like=like, migrations=migrations)
    assert " more lines\n" in text
    block = text.partition("\nmigrations[0]")[0]
    options = proposed(block)
    assert cordwood.load(tmp_path / "a", like=like, **options) is not None


@pytest.mark.parametrize("is_stored_whole", [True, False])
def test_the_rule_of_a_real_mask(is_stored_whole: bool, tmp_path: Path) -> None:
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    plain = {"opt_state": _adam().init(params)}
    masked = {"opt_state": optax.masked(_adam(), {"b": False, "w": True}).init(params)}
    rules: Any = (
        {"rename": {"opt_state/**": "opt_state/inner_state/**"}},
        {"rename": {"opt_state/inner_state": "opt_state"}},
    )
    stored, like = (plain, masked) if is_stored_whole else (masked, plain)
    rule, option = (
        (rules[0], {"extra": "ignore"}) if is_stored_whole else (rules[1], {"missing": "keep"})
    )
    cordwood.save(tmp_path / "a", jax.tree.map(lambda leaf: leaf + 1, stored))
    text = error_of(MismatchError, tmp_path / "a", like=like, **rule)
    options = proposed(text, only="/0/mu/b")
    assert options == option
    loaded: Any = cordwood.load(tmp_path / "a", like=like, **rule, **options)["opt_state"]
    state = loaded.inner_state[0] if is_stored_whole else loaded[0]
    assert_trees_equal(state.mu["w"], jnp.ones(2))
    assert state.count == 1
    row = next(
        line
        for line in (Path(__file__).parents[2] / "docs/how-to/optax.md").read_text().splitlines()
        if line.startswith("| `optax.masked`")
    )
    cell = row.split("|")[2 if is_stored_whole else 3].strip().strip("`")
    assert ast.literal_eval(cell) == {**rule, **options}


def _adam() -> Any:
    return optax.adam(1e-3)


@remedy("rename={", ', missing="keep"', ', extra="ignore"', formats=KEYED)
def a_part_has_moved_into_a_wrapper_or_out_of_it(tmp_path: Path, write: Writer) -> None:
    params = {"w": jnp.ones(2)}
    number = 0
    for wrapper, inner in (
        (optax.chain(optax.clip(1.0), _adam()), lambda state: state[1]),
        (optax.MultiSteps(_adam(), 2), lambda state: state.inner_opt_state),
        (optax.apply_if_finite(_adam(), 2), lambda state: state.inner_state),
    ):
        states = [
            {"opt_state": optimizer.init(params), "params": params}
            for optimizer in (_adam(), wrapper)
        ]
        for stored, like in (states, states[::-1]):
            number += 1
            (folder := tmp_path / str(number)).mkdir()
            path = write(folder, jax.tree.map(lambda leaf: leaf + 1, stored))
            loaded = cordwood.load(path, like=like, **refused(path, like=like))
            plain, wrapped = (loaded, stored) if like is states[0] else (stored, loaded)
            expected = inner(wrapped["opt_state"])
            actual = plain["opt_state"]
            one, other = (actual, expected) if like is states[0] else (expected, actual)
            assert_trees_equal(one, jax.tree.map(lambda leaf: leaf + 1, other))


@remedy(
    ": to begin with a fresh optimizer, keep its state of `like` by select=",
    ', missing="keep" (docs/how-to/optax.md)',
)
def another_optimizer_begins_fresh(tmp_path: Path, write: Writer) -> None:
    params = {"b": jnp.ones(3), "w": jnp.ones(2)}
    state = {"opt_state": _adam().init(params), "params": params}
    fresh = {"opt_state": optax.sgd(0.1, momentum=0.9).init(params), "params": params}
    path = write(tmp_path, state)
    if write in (WRITERS[name] for name in ("dotted", "npz")):
        options: dict[str, Any] = {"select": "!opt_state", "missing": "keep"}
    else:
        options = refused(path, like=fresh)
    assert options == {"select": "!opt_state", "missing": "keep"}
    assert_trees_equal(cordwood.load(path, like=fresh, **options), fresh)


@remedy(' (missing="keep" keeps the value of `like`)')
def a_leaf_that_is_missing_is_kept(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": jnp.ones(2)})
    for rest in (jnp.zeros(2), [jnp.zeros(1)], (jnp.zeros(1), {"x": jnp.ones(1)})):
        like = {"a": jnp.ones(2), "qqqqqqq": rest}
        options = refused(path, like=like, only="keeps the value")
        assert options == {"missing": "keep"}
        assert_trees_equal(cordwood.load(path, like=like, **options), like)


@remedy(' (extra="ignore" skips it)')
def a_leaf_that_is_too_much_is_ignored(tmp_path: Path, write: Writer) -> None:
    rests = (jnp.zeros(2), [jnp.zeros(1)], (jnp.zeros(1), {"x": jnp.ones(1)}))
    for number, rest in enumerate(rests):
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, {"a": jnp.ones(2), "qqqqqqq": rest})
        options = refused(path, like={"a": jnp.ones(2)}, only="skips it")
        assert options == {"extra": "ignore"}
        loaded = cordwood.load(path, like={"a": jnp.zeros(2)}, **options)
        assert_trees_equal(loaded, {"a": jnp.ones(2)})


@remedy(', and `like` has no value for missing="keep" to keep, only a shape and a dtype')
def a_missing_leaf_needs_a_value(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": jnp.ones(2)})
    like = {"a": jnp.ones(2), "b": jnp.zeros(1)}
    abstract = jax.eval_shape(lambda: like)
    assert "`like` has no value" in error_of(MismatchError, path, like=abstract, missing="keep")
    assert_trees_equal(cordwood.load(path, like=like, missing="keep"), like)


@remedy("use rename= (docs/how-to/hugging-face.md)")
def no_leaf_has_the_same_name(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"aaa": [jnp.ones(2)], "bbb": jnp.zeros(1)})
    like = {"xxx": [jnp.ones(2)], "yyy": jnp.zeros(1)}
    options: Any
    for options in ({}, {"missing": "keep", "extra": "ignore"}):
        assert "use rename=" in error_of(MismatchError, path, like=like, **options)
    loaded = cordwood.load(path, like=like, rename={"aaa": "xxx", "bbb": "yyy"})
    assert_trees_equal(loaded, like)


@remedy("cast=True converts it")
def another_dtype_is_cast(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": (jnp.ones(2), jnp.arange(3))})
    like = {"a": (jnp.ones(2, jnp.bfloat16), jnp.arange(3, dtype=jnp.int8))}
    options = refused(path, like=like)
    assert options == {"cast": True}
    assert_trees_equal(cordwood.load(path, like=like, **options), like)


@remedy("cast={", "} converts it")
def another_dtype_beside_a_cast_is_named(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": (jnp.ones(2), jnp.arange(3))})
    like = {"a": (jnp.ones(2), jnp.arange(3, dtype=jnp.int8))}
    expected = {"a": (jnp.ones(2, jnp.bfloat16), jnp.arange(3, dtype=jnp.int8))}
    for cast in ("bf16", {"a/0": "bf16"}):
        options = refused(path, like=like, cast=cast)
        assert_trees_equal(cordwood.load(path, like=like, **options), expected)


@remedy("(0) into `like`, or pass like=jax.eval_shape(f), where f() creates the state; cast=True")
def a_step_counter_is_an_array(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"n": jnp.int32(7), "w": jnp.ones(2)})

    def create() -> Any:
        return {"n": 0, "w": jnp.ones(2)}

    options = refused(path, like=create(), only="eval_shape")
    assert options["cast"] is True
    assert cordwood.load(path, like=create(), cast=True)["n"] == 7
    assert cordwood.load(path, like={**create(), "n": jnp.int32(0)})["n"] == 7
    assert cordwood.load(path, like=jax.eval_shape(create))["n"] == 7


@remedy(" (that is its transpose, as PyTorch stores it: pass transpose=")
def weights_of_pytorch_are_transposed(tmp_path: Path, write: Writer) -> None:
    kernel, conv = jnp.arange(6.0).reshape(2, 3), jnp.arange(24.0).reshape(2, 3, 4)
    path = write(tmp_path, {"a": [{"w": kernel}], "b": {"c": conv}})
    like = {"a": [{"w": kernel.T}], "b": {"c": conv}}
    options = refused(path, like=like)
    assert_trees_equal(cordwood.load(path, like=like, **options), like)
    like = {"a": [{"w": kernel}], "b": {"c": conv.transpose(2, 1, 0)}}
    options = refused(path, like=like)
    assert_trees_equal(cordwood.load(path, like=like, **options), like)


@remedy(
    ", and patterns by themselves are for matrices: leave it out with '!...', or say the order of "
    "its axes (of a convolution of PyTorch, transpose=",
    formats=("packs", "msgpack", "npz"),
)
def a_convolution_needs_an_order_of_axes(tmp_path: Path, write: Writer) -> None:
    tree = {"c": jnp.ones((2, 3, 4)), "w": jnp.ones((2, 3))}
    path = write(tmp_path, tree)
    options = refused(path, transpose="**")
    assert options == {"transpose": {"c": (2, 1, 0)}}
    assert cordwood.load(path, **options)["c"].shape == (4, 3, 2)
    assert cordwood.load(path, transpose=["**", "!c"])["w"].shape == (3, 2)


@remedy('\nto leave one of them out, pass for example select=["**", ')
def two_leaves_get_one_name(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": (jnp.ones(2),), "b": (jnp.zeros(2),), "c": jnp.ones(1)})
    like = {"b": (jnp.zeros(2),), "c": jnp.zeros(1)}
    options = refused(path, like=like, rename={"a": "b"})
    loaded = cordwood.load(path, like=like, rename={"a": "b"}, **options)
    assert_trees_equal(loaded, {"b": (jnp.ones(2),), "c": jnp.ones(1)})


@remedy(": there is no new path; to leave it out, use select=")
def a_rule_without_a_new_path(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": jnp.ones(2), "b": jnp.zeros(1)})
    error_of(ValueError, path, rename={"b": []})
    loaded = cordwood.load(path, like={"a": jnp.ones(2)}, select="!b")
    assert_trees_equal(loaded, {"a": jnp.ones(2)})


@remedy(
    ' (rename={"**/value$": "**"} loads the values of flax.nnx variables)',
    ' (rename={"**": "**/value"} loads into the values of flax.nnx variables)',
    formats=("packs", "msgpack", "flax", "orbax"),
)
def variables_of_nnx_and_their_values(tmp_path: Path, write: Writer) -> None:
    values = {"kernel": jnp.ones(2), "layers": [{"bias": jnp.zeros(2)}]}
    variables = jax.tree.map(lambda leaf: {"value": leaf}, values)
    for number, (stored, like) in enumerate([(values, variables), (variables, values)]):
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, stored)
        options = refused(path, like=like, only="flax.nnx")
        assert_trees_equal(cordwood.load(path, like=like, **options), like)


@remedy(
    "a `like` of 32-bit arrays and cast=True",
    ', or leave leaves out: select=["**", ',
    ' in all), and jax\'s 64-bit types are off: load with to="numpy", or call '
    'jax.config.update("jax_enable_x64", True) first, or pass ',
    'cast="',
    formats=("packs", "msgpack", "npz", "dotted"),
)
def leaves_of_64_bits(tmp_path: Path, write: Writer) -> None:
    tree = {"n": {"i": np.arange(2)}, "w": np.ones(2, np.float32)}
    path = write(tmp_path, tree)
    like = {"n": {"i": jnp.arange(2)}, "w": jnp.ones(2)}
    error_of(MismatchError, path, like={"n": {"i": np.arange(2)}, "w": like["w"]}, to="jax")
    assert_trees_equal(cordwood.load(path, like=like, cast=True), like)
    text = error_of(MismatchError, path, to="jax")
    first = text.splitlines()[0]
    options = proposed(first)
    assert options["to"] == "numpy"
    for option in ("cast", "select"):
        loaded = cordwood.load(path, to="jax", **{option: options[option]})
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded))
    for odd in ("[w]", 'a"b', "a\\b", "(0)", "!w", "w*"):
        (folder := tmp_path / f"odd{ord(odd[1])}{ord(odd[0])}").mkdir()
        named = write(folder, {odd: np.arange(2), "w": np.ones(2, np.float32)})
        options = proposed(error_of(MismatchError, named, to="jax").splitlines()[0])
        assert list(cordwood.load(named, to="jax", select=options["select"])) == ["w"]
        assert set(cordwood.load(named, to="jax", cast=options["cast"])) == {odd, "w"}
    cordwood.load(path, to="numpy")
    (folder := tmp_path / "wide").mkdir()
    wide = write(folder, {"w": np.ones(2)})
    options = proposed(error_of(MismatchError, wide, to="jax").splitlines()[0])
    assert options["cast"] == "float32"
    assert "select" not in options  # nothing would be left
    loaded = cordwood.load(wide, to="jax", cast=options["cast"])
    assert_trees_equal(loaded, {"w": jnp.ones(2)})


ONE = ("packs",)


@remedy(
    'cast=True converts to the dtypes of `like`: pass one, or a dtype (cast="bf16")', formats=ONE
)
def a_cast_without_like(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"w": jnp.ones(2)})
    options = proposed(error_of(ValueError, path, cast=True))
    assert cordwood.load(path, cast=options["cast"])["w"].dtype == jnp.bfloat16
    like = {"w": jnp.ones(2, jnp.float16)}
    assert_trees_equal(cordwood.load(path, like=like, cast=True), like)


@remedy('to="numpy" has no use for a mesh, rules or shardings: leave one out', formats=ONE)
def numpy_and_a_mesh(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"w": jnp.ones(8)})
    mesh = mesh_of(8)
    error_of(ValueError, path, to="numpy", mesh=mesh)
    assert isinstance(cordwood.load(path, to="numpy")["w"], np.ndarray)
    assert cordwood.load(path, mesh=mesh)["w"].sharding.mesh == mesh


@remedy(
    "rules give partition specs, which need a mesh: pass mesh=",
    " is a partition spec, which needs a mesh: pass mesh=",
    ". Rules do not use the wildcards of select=; '.*' matches all leaves",
    formats=ONE,
)
def rules_and_specs_need_a_mesh(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"w": jnp.ones(8)})
    mesh = mesh_of(8)
    wrong: Any
    for wrong in ({"rules": [(".*", P("x"))]}, {"shardings": {"w": P("x")}}):
        assert "pass mesh=" in error_of(ValueError, path, **wrong)
        assert cordwood.load(path, mesh=mesh, **wrong)["w"].sharding.spec == P("x")
    error_of(ValueError, path, mesh=mesh, rules=[("*", P("x"))])
    loaded = cordwood.load(path, mesh=mesh, rules=[(".*", P("x"))])
    assert loaded["w"].sharding.spec == P("x")


@remedy(" over an abstract mesh, which has no devices: pass mesh=", formats=ONE)
def an_abstract_mesh_needs_devices(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"w": jnp.ones(8)})
    mesh = mesh_of(8)
    sharding = jax.sharding.NamedSharding(mesh.abstract_mesh, P("x"))
    like = {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}
    assert "pass mesh=" in error_of(ValueError, path, like=like)
    assert cordwood.load(path, like=like, mesh=mesh)["w"].sharding.mesh == mesh
    with jax.set_mesh(mesh):
        assert cordwood.load(path, like=like)["w"].sharding.mesh == mesh


@remedy(
    "without names or structure: pass like=, a tree like the one that was saved "
    "(equinox.filter_eval_shape makes one that takes no memory)",
    formats=ONE,
)
def arrays_without_names_need_a_like(tmp_path: Path, write: Writer) -> None:
    def create() -> Any:
        return eqx.nn.Linear(2, 3, key=jax.random.key(0))

    eqx.tree_serialise_leaves(tmp_path / "a.eqx", create())
    error_of(MismatchError, tmp_path / "a.eqx")
    loaded = cordwood.load(tmp_path / "a.eqx", like=eqx.filter_eval_shape(create))
    assert_trees_equal(loaded, create())


@remedy(
    " has a key that is joined by '.': only the keys of one flat dict are split; load it "
    "without nest=True, or with rename=",
    " is a leaf too; load it without nest=True",
    "nest=True is for names as they are; rename has made paths of some",
    formats=ONE,
)
def names_that_cannot_be_nested(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"m": {"a.b": jnp.ones(2)}})
    error_of(ValueError, path, nest=True)
    assert_trees_equal(cordwood.load(path), {"m": {"a.b": jnp.ones(2)}})
    loaded = cordwood.load(path, rename={"m/*.*": "m/*/*"})
    assert_trees_equal(loaded, {"m": {"a": {"b": jnp.ones(2)}}})
    (folder := tmp_path / "both").mkdir()
    both = write(folder, {"a": jnp.ones(1), "a.b": jnp.ones(2)})
    with pytest.raises(cordwood.errors.FormatError, match="load it without nest=True"):
        cordwood.load(both, nest=True)
    assert set(cordwood.load(both)) == {"a", "a.b"}
    (folder := tmp_path / "dotted").mkdir()
    dotted = WRITERS["dotted"](folder, {"a": {"b": jnp.ones(2), "c": jnp.ones(1)}})
    error_of(ValueError, dotted, nest=True, rename={"a.b": "x/y"})
    assert set(cordwood.load(dotted, rename={"a.b": "x/y"})) == {"x", "a.c"}
    assert set(cordwood.load(dotted, nest=True)) == {"a"}


@remedy("; name the tree: prefix=", formats=ONE)
def one_of_several_trees(tmp_path: Path, write: Writer) -> None:
    for prefix in ("ema", "model"):
        cordwood.save(tmp_path / "a", {"w": jnp.ones(2)}, prefix=prefix)
    options = proposed(error_of(PrefixError, tmp_path / "a"))
    assert options == {"prefix": "ema"}
    cordwood.load(tmp_path / "a", **options)


@remedy(". '' is the tree that has no prefix: leave out prefix=", formats=ONE)
def a_prefix_beside_a_tree_without_one(tmp_path: Path, write: Writer) -> None:
    tree = {"w": jnp.ones(2)}
    cordwood.save(tmp_path / "a", tree)
    cordwood.save(tmp_path / "a", {"w": jnp.zeros(2)}, prefix="ema")
    assert "leave out prefix=" in error_of(PrefixError, tmp_path / "a", prefix="zz")
    assert_trees_equal(cordwood.load(tmp_path / "a"), tree)


@remedy("; did you mean prefix=", formats=ONE)
def a_misspelt_prefix(tmp_path: Path, write: Writer) -> None:
    for prefix in ("ema", "model"):
        cordwood.save(tmp_path / "a", {"w": jnp.ones(2)}, prefix=prefix)
    text = error_of(PrefixError, tmp_path / "a", prefix="modle")
    assert text.endswith("; did you mean prefix='model'? Available: ['ema', 'model']")
    cordwood.load(tmp_path / "a", **proposed(text))


@remedy("prefix=. To load a part of it, pass its key path as select= (`cordwood ls ", formats=ONE)
def a_prefix_of_one_tree(tmp_path: Path, write: Writer) -> None:
    tree = {"model": {"w": jnp.ones(2)}, "step": 7}
    path = write(tmp_path, tree)
    text = error_of(PrefixError, path, prefix="ema")
    assert f"`cordwood ls {path}` lists them" in text
    assert "ema" not in text.partition("not found")[2]
    assert_trees_equal(cordwood.load(path), tree)
    assert_trees_equal(cordwood.load(path, select="model"), {"model": tree["model"]})


@remedy(' the others with select=["**", ', formats=ONE)
def a_leaf_that_cannot_be_read(tmp_path: Path, write: Writer) -> None:
    np.savez(tmp_path / "a.npz", names=np.array(["a", "b"]), w=np.ones(2))
    text = error_of(UnsupportedFormatError, tmp_path / "a.npz")
    assert set(cordwood.load(tmp_path / "a.npz", **proposed(text))) == {"w"}


@remedy('to keep that of `like`, pass select="!', formats=ONE)
def a_named_leaf_of_like_that_cannot_be_read(tmp_path: Path, write: Writer) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(2), o=np.array(["a", "b"]))
    like = {"o": np.zeros(1), "w": np.zeros(2)}
    for missing in ({}, {"missing": "keep"}):
        options = refused(tmp_path / "a.npz", like=like, **missing)
        assert options == {"select": "!o", "missing": "keep"}
        loaded = cordwood.load(tmp_path / "a.npz", like=like, **options)
        assert_trees_equal(loaded, {"o": np.zeros(1), "w": np.ones(2)})


@remedy(' (missing="keep" keeps that of `like`)', formats=ONE)
def a_leaf_of_like_that_cannot_be_read(tmp_path: Path, write: Writer) -> None:
    with (tmp_path / "a.eqx").open("wb") as file:
        for array in (np.ones(2), np.array(["a", "b"])):
            np.save(file, array)
    like = [np.zeros(2), np.zeros(1)]
    options = refused(tmp_path / "a.eqx", like=like)
    assert options == {"missing": "keep"}
    loaded = cordwood.load(tmp_path / "a.eqx", like=like, **options)
    assert_trees_equal(loaded, [np.ones(2), np.zeros(1)])


@remedy(
    '. To restore the tree without it, leave it out of items=; missing="keep" keeps the tree that '
    "is given",
    formats=ONE,
)
def a_step_lacks_an_item(tmp_path: Path, write: Writer) -> None:
    tree = {"w": jnp.ones(2)}
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, tree)
        with pytest.raises(MismatchError) as error:
            manager.restore(like=tree, items={"ema": tree})
        options: Any = proposed(str(error.value))
        assert options == {"missing": "keep"}
        restored = manager.restore(like=tree, items={"ema": tree}, **options)
        assert restored is not None
        assert restored.items["ema"] is tree
        assert manager.restore(like=tree) is not None


@remedy(" does not fit `like`, neither as it is nor by any of migrations=:\n")
def no_migration_fits(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path, {"a": (jnp.ones(2),)})
    like = {"b": (jnp.ones(2),)}
    error_of(MismatchError, path, like=like, migrations=[{"rename": {"x": "b"}}])
    loaded = cordwood.load(path, like=like, migrations=[{"rename": {"a": "b"}}])
    assert_trees_equal(loaded, like)


CASES = {
    f"{test.__name__}-{name}": (test, name) for test, formats in ROWS.values() for name in formats
}


@pytest.mark.parametrize("case", CASES)
def test_the_remedy_works(case: str, tmp_path: Path) -> None:
    test, name = CASES[case]
    test(tmp_path, WRITERS[name])


def texts_with_remedies(path: Path) -> list[str]:
    """Return the texts in a module, without its docstrings, that name an option of a load."""
    tree = ast.parse(path.read_text())
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0]
            if isinstance(first, ast.Expr):
                docstrings.add(first.value)
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node not in docstrings
        and IN_A_MESSAGE.search(node.value)
    ]


MODULES = [
    *sorted(SOURCE.glob("loading/**/*.py")),
    *sorted(SOURCE.glob("plan/*.py")),
    SOURCE / "errors.py",
    SOURCE / "formats" / "packs" / "cordwood_json.py",
    SOURCE / "formats" / "packs" / "select_item.py",
    *sorted(SOURCE.glob("manager/items/*.py")),
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_remedy_has_a_row(path: Path) -> None:
    texts = [text for text in texts_with_remedies(path) if text not in NAMES_AN_ARGUMENT]
    without = [text for text in texts if not any(part in text for part in ROWS)]
    assert not without, "execute what these messages propose in a function of this module"


def test_every_row_is_of_a_message() -> None:
    texts: Mapping[str, bool] = {
        node.value: True
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert [part for part in ROWS if not any(part in text for text in texts)] == []
    assert set(ARRAYS_ONLY) <= set(WRITERS)
