"""Scripts as users of Orbax write them: what they observe with Orbax, and with its replacement."""

from __future__ import annotations

import gc
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint
import pytest

import cordwood.compat.orbax
from tests.compat.orbax.differences import DIFFERENCES, differing
from tests.compat.orbax.observe import described

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(
    path.stem for path in (Path(__file__).parent / "scripts").glob("*.py") if path.stem[0] != "_"
)


# Coroutines of restores that failed in Orbax are never awaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def observe(script: str, ocp: Any, directory: Path) -> Any:
    """Return what a script observes in a new directory."""
    module = importlib.import_module(f"tests.compat.orbax.scripts.{script}")
    directory.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return described(module.run(ocp, directory))


@pytest.fixture(scope="module", autouse=True)
def _collect_coroutines() -> Iterator[None]:
    """Collect what failed restores have left, before tests where its warnings are errors."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_observes_the_same_with_the_import_changed(script: str, tmp_path: Path) -> None:
    with_orbax = observe(script, orbax.checkpoint, tmp_path / "orbax")
    with_cordwood = observe(script, cordwood.compat.orbax, tmp_path / "cordwood")
    differences = differing(with_orbax, with_cordwood)
    if "/error" in differences:  # it is refused at once, and observes nothing else
        differences = {"/error": differences["/error"]}
    expected = DIFFERENCES.get(script, {})
    assert differences == {key: difference.values for key, difference in expected.items()}


def test_the_page_explains_each_difference() -> None:
    page = (ROOT / "docs" / "how-to" / "orbax.md").read_text()
    for differences in DIFFERENCES.values():
        for difference in differences.values():
            assert f"\n| {difference.row} | " in page
