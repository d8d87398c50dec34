"""docs/mistakes.md shows what the libraries do today: every mistake is made again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from demo.mistakes.attempt import outcome, why_not
from demo.mistakes.catalogue import MISTAKES
from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import Mistake
from demo.mistakes.page import PAGE, as_markdown, cut, read_record

RECORD = read_record()
ADVICE = "run python -m demo.mistakes"
_all = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)


@_all
def test_the_page_has_the_outcomes_of_cordwood(mistake: Mistake, tmp_path: Path) -> None:
    if mistake.surroundings is not None and why_not(mistake.surroundings):
        pytest.skip(why_not(mistake.surroundings))
    actual = cut(outcome(mistake, "cordwood", tmp_path))
    assert actual == RECORD.outcomes[mistake.title]["cordwood"], f"{ADVICE} cordwood"


@pytest.mark.parametrize("name", ["flax", "equinox"])
@_all
def test_the_page_has_the_outcomes_of_flax_and_equinox(
    mistake: Mistake, name: str, tmp_path: Path
) -> None:
    if mistake.surroundings is not None:
        pytest.skip("each would need its own process")
    actual, recorded = cut(outcome(mistake, name, tmp_path)), RECORD.outcomes[mistake.title][name]
    assert actual.error == recorded.error, (actual.text, ADVICE)
    if _versions_are_recorded(name):
        assert actual.text == recorded.text, ADVICE


def test_the_page_has_the_outcomes_of_orbax() -> None:
    """Runs in its own process, because Orbax leaves threads and tasks behind."""
    command = [sys.executable, "-m", "demo.mistakes", "--print", "orbax"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout.splitlines()[-1])
    for mistake in MISTAKES:
        recorded = RECORD.outcomes[mistake.title]["orbax"]
        error, text = outcomes[mistake.title]["orbax"]
        if mistake.surroundings is not None and why_not(mistake.surroundings):
            continue
        assert error == recorded.error, (mistake.title, text, ADVICE)
        # If all arrays fail, any may be the first; files have random names.
        varies = mistake.change is not None or mistake.surroundings is not None or "…" in text
        if not varies and _versions_are_recorded("orbax"):
            assert text == recorded.text, (mistake.title, ADVICE)


def _versions_are_recorded(name: str) -> bool:
    """Return True if the words of a library, and of jax in its messages, are those of the page."""
    installed = {name: LIBRARIES[name].version, "jax": version("jax")}
    return installed.items() <= RECORD.versions.items()


def test_the_page_has_the_record() -> None:
    assert PAGE.read_text() == as_markdown(RECORD), ADVICE
    assert list(RECORD.outcomes) == [mistake.title for mistake in MISTAKES]
    assert len(MISTAKES) >= 30


def test_the_cases_without_an_error_of_cordwood() -> None:
    without_error = {title for title, row in RECORD.outcomes.items() if not row["cordwood"].error}
    assert without_error == {
        "A relative path",
        "Another number of devices",
        "Keys that are equal as strings",
        "Keys that are equal when joined",
        "Saving over an older checkpoint",
    }
