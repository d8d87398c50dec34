"""The contract: the test modules that must pass unchanged whatever changes inside cordwood."""

from __future__ import annotations

import pytest

from tests.contract import ROOT, internal_names, internal_names_in

MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
NAMED = """
    api/test_round_trip.py
    api/test_conversion_matrix.py
    api/test_detect.py
    api/test_golden_readers.py
    api/test_like_trees.py
    api/test_refusals.py
    api/test_shards.py
    cli/test_transcripts.py
    compat/test_names.py
    formats/test_conformance.py
    formats/test_zarr_golden.py
    hostile/test_orbax.py
    hostile/test_shards.py
    hostile/test_zarr_trees.py
    manager/test_foreign.py
    manager/test_integration.py
    processes/test_one_fails.py
    test_any_sharding.py
    test_bitflips.py
    test_bytes_vs_flax.py
    test_examples.py
    test_faults.py
    test_memory.py
    test_public_names.py
""".split()  # noqa: SIM905


def test_many_modules_belong_to_it() -> None:
    assert sum(not internal_names(module) for module in MODULES) >= 60


@pytest.mark.parametrize("name", NAMED)
def test_this_module_belongs_to_it(name: str) -> None:
    assert internal_names(ROOT / "tests" / name) == frozenset()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import cordwood.errors", ["cordwood.errors"]),
        ("from cordwood import dtypes, _hidden", ["cordwood._hidden", "cordwood.dtypes"]),
        ("from cordwood.errors import FormatError", ["cordwood.errors.FormatError"]),
        ("import cordwood\nprint(cordwood.errors)", ["cordwood.errors"]),
        ("def f():\n    from cordwood.cli import output", ["cordwood.cli.output"]),
        ("run_python('import cordwood.keypath')", ["cordwood.keypath"]),
        ("from cordwood.testing import equality", ["cordwood.testing.equality"]),
        ("import cordwood, cordwood.msgpack, cordwood.compat.flax", []),
        ("from cordwood import load, msgpack, testing, __version__", []),
        ("from cordwood.testing import faults, strategies, flip_bits", []),
        ("from cordwood.cli.main import main", []),
        ("open('cordwood.json')", []),
    ],
)
def test_internal_names(text: str, names: list[str]) -> None:
    assert internal_names_in(text) == names


def test_a_module_has_the_internal_names_of_its_helpers_and_fixtures() -> None:
    """Helpers by import and by the name of a scenario, and fixtures of a conftest.py."""
    files = {
        name: {text.split(":")[0] for text in internal_names(ROOT / "tests" / name)}
        for name in (
            "manager/test_web_runs.py",
            "processes/test_group.py",
            "api/test_tree_leaves.py",
            "cli/test_transcripts.py",
        )
    }
    assert "tests/engine/web_stores.py" in files["manager/test_web_runs.py"]
    assert "tests/processes/scenarios.py" in files["processes/test_group.py"]
    assert "tests/conftest.py" in files["api/test_tree_leaves.py"]
    assert not files["cli/test_transcripts.py"]
