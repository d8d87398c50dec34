"""The contract: the test modules that must pass unchanged whatever changes inside cordwood."""

from __future__ import annotations

import pytest

from tests.contract import ROOT, internal_names, internal_names_in

MODULES = sorted((ROOT / "tests").rglob("test_*.py"))
NAMED = """
    api/test_conversion_matrix.py
    api/test_detect.py
    api/test_golden_readers.py
    api/test_refusals.py
    api/test_round_trip.py
    cli/test_transcripts.py
    compat/test_names.py
    docs/test_examples.py
    formats/flax_msgpack/test_bytes_vs_flax.py
    formats/hugging_face/test_hostile.py
    formats/hugging_face/test_round_trip.py
    formats/orbax/test_hostile.py
    formats/test_conformance.py
    formats/zarr/test_golden.py
    formats/zarr_tree/test_hostile.py
    loading/test_like_trees.py
    manager/test_foreign_steps.py
    manager/test_integration.py
    processes/test_one_process_fails.py
    processes/test_save_and_load.py
    storage/test_broken_file_saves.py
    storage/test_conformance.py
    test_bitflips.py
    test_load_under_any_sharding.py
    test_peak_memory.py
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
        ("import cordwood.index", ["cordwood.index"]),
        ("from cordwood import dtypes, _hidden", ["cordwood._hidden", "cordwood.dtypes"]),
        ("from cordwood.index import Index", ["cordwood.index.Index"]),
        ("import cordwood\nprint(cordwood.index)", ["cordwood.index"]),
        ("def f():\n    from cordwood.cli import output", ["cordwood.cli.output"]),
        ("run_python('import cordwood.index')", ["cordwood.index"]),
        ("from cordwood.testing import equality", ["cordwood.testing.equality"]),
        ("import cordwood, cordwood.msgpack, cordwood.compat.flax", []),
        ("from cordwood import load, msgpack, testing, __version__", []),
        ("from cordwood.testing import strategies, flip_bits", []),
        ("from cordwood.cli.main import main", []),
        ("open('cordwood.json')", []),
    ],
)
def test_names_of_internal_modules_are_recognised(text: str, names: list[str]) -> None:
    assert internal_names_in(text) == names


def test_a_module_has_the_internal_names_of_its_helpers_and_fixtures() -> None:
    """Helpers by import and by the name of a scenario, and fixtures of a conftest.py."""

    def files(name: str) -> set[str]:
        return {text.split(":")[0] for text in internal_names(ROOT / "tests" / name)}

    assert "tests/storage/web_stores.py" in files("storage/test_web_conformance.py")
    assert "tests/processes/scenarios.py" in files("processes/test_group.py")
    assert "tests/conftest.py" in files("compat/test_tree_leaves.py")
    assert not files("cli/test_transcripts.py"), "the fixture of the command is public"
