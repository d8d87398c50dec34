"""Output of `help()` for the values that cordwood returns."""

from __future__ import annotations

import pydoc
from typing import Any

import pytest

import cordwood
from cordwood import policies, results

NAMED_TUPLES = {
    name: value
    for module in (cordwood, policies, results)
    for name, value in ((name, getattr(module, name)) for name in module.__all__)
    if isinstance(value, type) and hasattr(value, "_fields")
}


def test_there_are_named_tuples() -> None:
    assert {"Conversion", "Detected", "LeafDiff", "Restored", "Verification"} <= set(NAMED_TUPLES)


@pytest.mark.parametrize("name", NAMED_TUPLES)
def test_help_of_a_named_tuple_explains_each_field(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(NAMED_TUPLES[name]))
    assert "Alias for field number" not in text
    assert "ForwardRef" not in text


@pytest.mark.parametrize("name", NAMED_TUPLES)
def test_a_documented_named_tuple_is_still_one(name: str) -> None:
    cls: Any = NAMED_TUPLES[name]
    values = tuple(range(len(cls._fields)))
    made = cls(*values)
    assert made == values
    assert made._replace(**{cls._fields[0]: 7})[0] == 7


def test_help_of_a_pending_save_shows_what_users_call() -> None:
    shown = {name for name in dir(cordwood.PendingSave) if not name.startswith("_")}
    assert shown == {"done", "exception", "failed", "progress", "wait"}
