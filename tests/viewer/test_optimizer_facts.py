"""Facts about the optimizer."""

from __future__ import annotations

import pytest

from cordwood.keypath import parse_path
from cordwood.viewer.layer_matrices import layer_matrices
from cordwood.viewer.leaf_change import LeafChange
from cordwood.viewer.leaf_kinds import is_counter
from cordwood.viewer.optimizer_facts import OptimizerFact, optimizer_facts


def change(path: str, change_l2: float, before: float, after: float) -> LeafChange:
    return LeafChange(parse_path(path), "changed", change_l2, before, after)


ADAM = [
    change("params/h_0/mlp/c_fc/kernel", 0.3, 3.0, 3.0),
    change("params/h_1/mlp/c_fc/kernel", 0.8, 4.0, 4.0),
    change("opt_state/0/mu/h_0/mlp/c_fc/kernel", 1.0, 3.0, 6.0),
    change("opt_state/0/mu/h_1/mlp/c_fc/kernel", 1.0, 4.0, 8.0),
    change("opt_state/0/nu/h_0/mlp/c_fc/kernel", 1.0, 0.5, 0.25),
    LeafChange(parse_path("opt_state/0/nu/h_1/mlp/c_fc/kernel"), "identical"),
]
COUNTERS = {
    parse_path("opt_state/0/count"): (100, 200),
    parse_path("opt_state/2/count"): (100, 200),
    parse_path("step"): (101, 201),
}


def test_the_facts_of_adam_are_computed() -> None:
    steps, step, first, second, update = optimizer_facts(ADAM, COUNTERS, layer_matrices(ADAM))
    assert steps == OptimizerFact("steps", 100, 200, 100, "opt_state/0/count and 1 other counter")
    assert step == OptimizerFact("steps", 101, 201, 100, "step")
    assert (first.name, first.a, first.b) == ("first moments (mu)", 5.0, 10.0)
    assert first.change == pytest.approx(2**0.5 / 5)
    assert first.text == "L2 norms of 2 leaves"
    assert (second.name, second.a, second.b) == ("second moments (nu)", 0.5, 0.25)
    assert second.change == 2.0
    assert second.text == "L2 norms of 1 of 2 leaves; the rest was not read"
    assert (update.name, update.a, update.b) == ("update to weight", None, None)
    assert update.change == pytest.approx(0.73**0.5 / 5)
    assert update.text.endswith("; largest in layer 1: 0.2")


def test_the_order_of_the_leaves_does_not_matter() -> None:
    changes = [*ADAM[2:], *ADAM[:2]]  # JAX sorts the keys of a dict
    facts = optimizer_facts(changes, {}, layer_matrices(changes))
    assert facts == optimizer_facts(ADAM, {}, layer_matrices(ADAM))


def test_layers_of_moments_are_no_layers_of_the_parameters() -> None:
    changes = [change("params/w", 0.1, 1.0, 1.0), *ADAM[2:]]
    *_, update = optimizer_facts(changes, {}, layer_matrices(changes))
    assert (update.name, update.change) == ("update to weight", 0.1)
    assert "layer" not in update.text


def test_values_that_were_not_read_give_no_facts() -> None:
    changes = [LeafChange(leaf.key_path, "changed") for leaf in ADAM]
    assert optimizer_facts(changes, {}) == []


def test_a_model_without_an_optimizer_has_an_update() -> None:
    (fact,) = optimizer_facts([change("params/h_0/ln_1/scale", 0.1, 1.0, 1.0)], {})
    assert (fact.name, fact.change) == ("update to weight", 0.1)
    assert optimizer_facts([], {}) == []


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("opt_state/0/count", True),
        ("opt_state/inner_states/adamw/inner_state/1/count", True),
        ("step", True),
        ("state/step", True),
        ("0/count", True),
        ("params/a/histogram/count", False),
        ("opt_state/0/mu/h_0/count", False),
        ("", False),
    ],
)
def test_counters_are_known_by_their_names(path: str, counts: bool) -> None:
    assert is_counter(parse_path(path)) == counts
