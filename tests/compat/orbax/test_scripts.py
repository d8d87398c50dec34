"""Scripts as users of Orbax write them: what they observe with Orbax, and with its replacement."""

from __future__ import annotations

import gc
import importlib
import warnings
from pathlib import Path
from typing import Any

import orbax.checkpoint
import pytest

from tests.compat.orbax.observe import described

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
        observed = described(module.run(ocp, directory))
        gc.collect()
    return observed


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run_with_orbax(script: str, tmp_path: Path) -> None:
    assert observe(script, orbax.checkpoint, tmp_path / "run")
