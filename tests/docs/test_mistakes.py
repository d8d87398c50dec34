"""Every mistake of docs/mistakes.md is made again, and what is said of it is printed there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
def test_cordwood_says_what_the_page_says(mistake: Mistake, tmp_path: Path) -> None:
    if mistake.surroundings is not None and why_not(mistake.surroundings):
        pytest.skip(why_not(mistake.surroundings))
    found = cut(outcome(mistake, "cordwood", tmp_path))
    assert found == RECORD.outcomes[mistake.title]["cordwood"], f"{ADVICE} cordwood"


@pytest.mark.parametrize("name", ["flax", "equinox"])
@_all
def test_flax_and_equinox_say_what_the_page_says(
    mistake: Mistake, name: str, tmp_path: Path
) -> None:
    _require_version(name)
    if mistake.surroundings is not None:
        pytest.skip("would start a process for each")
    assert cut(outcome(mistake, name, tmp_path)) == RECORD.outcomes[mistake.title][name], ADVICE


def test_orbax_says_what_the_page_says() -> None:
    """In a process of its own: it leaves threads and tasks behind."""
    _require_version("orbax")
    command = [sys.executable, "-m", "demo.mistakes", "--print", "orbax"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    for mistake in MISTAKES:
        recorded = RECORD.outcomes[mistake.title]["orbax"]
        error, text = found[mistake.title]["orbax"]
        if mistake.surroundings is not None and why_not(mistake.surroundings):
            continue
        assert error == recorded.error, (mistake.title, text, ADVICE)
        # Where all arrays fail, any may be the first; files have names of chance.
        if mistake.change is None and mistake.surroundings is None and "…" not in text:
            assert text == recorded.text, (mistake.title, ADVICE)


def _require_version(name: str) -> None:
    if LIBRARIES[name].version != RECORD.versions[name]:
        pytest.skip(f"recorded of version {RECORD.versions[name]}")


def test_the_page_is_what_was_recorded() -> None:
    assert PAGE.read_text() == as_markdown(RECORD), ADVICE
    assert list(RECORD.outcomes) == [mistake.title for mistake in MISTAKES]
    assert len(MISTAKES) >= 30


def test_only_what_is_no_mistake_for_cordwood_is_no_error() -> None:
    told = {title for title, row in RECORD.outcomes.items() if not row["cordwood"].error}
    assert told == {
        "A relative path",
        "Another number of devices",
        "Keys that are one as strings",
        "Keys that are one when joined",
        "Saving over an older checkpoint",
    }
