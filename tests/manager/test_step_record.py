"""The record of a step: every value comes back, and nothing else is read."""

from __future__ import annotations

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.encoding.plain_json import as_json
from cordwood.errors import FormatError, UnsupportedFormatError
from cordwood.formats.step_record import Record, decode_record, encode_record
from cordwood.manager.metrics_argument import as_metrics

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(st.characters(codec="utf-8")), parts),
    max_leaves=8,
)
GOOD = '{"version":1,"step":3,"time":2.5,"metrics":{"loss":1},"extras":[null],"items":{},"chain":7}'


@given(
    st.integers(0, 10**18),
    st.floats(0, 2e9),
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.floats()),
    json_values,
)
def test_any_record_is_encoded_and_decoded(
    step: int, time: float, metrics: dict[str, float], extras: Any
) -> None:
    text = encode_record(Record(step, time, metrics, extras, {"data": [extras]}, 5))
    result = decode_record(text, "a step")
    assert (result.step, result.time, result.extras) == (step, time, extras)
    assert (result.items, result.chain) == ({"data": [extras]}, 5)
    assert result.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        both_nan = math.isnan(value) and math.isnan(result.metrics[name])
        assert both_nan or result.metrics[name] == value
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("1,", "0,"), "x: expected version 1, found 0"),
        (("1,", "true,"), "x: expected version 1, found True"),
        (
            ('"step"', '"stop"'),
            "x: expected an object of version, step, time, metrics, ",
        ),
        (("3,", "-3,"), "x: step: expected an integer of at least 0, found -3"),
        (("3,", "true,"), "x: step: expected an integer of at least 0, found True"),
        (("2.5", '"2"'), "x: time: expected a number, found '2'"),
        (("2.5", "1" * 400), "x: time: expected a number, found 1111"),
        (('{"loss":1}', '{"loss":%s}' % ("1" * 400)), "x: metrics: loss: expected a number, found"),
        (('{"loss":1}', "[]"), "x: metrics: expected an object"),
        (('{"loss":1}', '{"loss":"1"}'), "x: metrics: loss: expected a number, found '1'"),
        (('"items":{}', '"items":[]'), "x: items: expected an object"),
        (('"chain":7', '"chain":-7'), "x: chain: expected an integer of at least 0, found -7"),
        (('"chain":7', '"chain":"7"'), "x: chain: expected an integer of at least 0, found '7'"),
        ((',"chain":7', ""), "x: expected an object of version, .*, items, chain$"),
        (("[null]", "NaN"), "x: .*NaN"),
        (("[null]", "[null"), "x is not JSON"),
    ],
)
def test_a_wrong_record_is_refused(change: tuple[str, str], message: str) -> None:
    assert decode_record(GOOD, "x").metrics == {"loss": 1.0}
    with pytest.raises(FormatError, match=message):
        decode_record(GOOD.replace(*change, 1), "x")


def test_a_newer_version_is_distinguished_from_damage() -> None:
    with pytest.raises(
        UnsupportedFormatError, match=r"x: version 2 is newer than .* \(1\); upgrade"
    ):
        decode_record('{"version":2,"what":0}', "x")


def test_metrics_become_numbers_or_are_refused() -> None:
    given_as = {"a": jnp.float32(0.5), "b": np.ones((1,), np.int8)[0], "c": 3, "d": math.inf}
    assert as_metrics(given_as) == {"a": 0.5, "b": 1.0, "c": 3.0, "d": math.inf}
    assert as_metrics(None) == {}
    with pytest.raises(TypeError, match="metrics: loss: expected a number, found 'low'"):
        as_metrics({"loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="metrics: loss: expected a number, found"):
        as_metrics({"loss": np.ones(2)})
    with pytest.raises(TypeError, match="metrics: expected names that are str, found 1"):
        as_metrics({1: 1.0})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "wrong", [(1, 2), {1: 2}, {"a": math.nan}, object(), b"bytes", [np.ones(1)]]
)
def test_extras_that_json_would_change(wrong: Any) -> None:
    with pytest.raises(TypeError, match="extras: expected values that JSON"):
        as_json(wrong, "extras")


def test_extras_are_copied() -> None:
    extras = {"a": [1]}
    copy = as_json(extras, "extras")
    extras["a"].append(2)
    assert copy == {"a": [1]}
