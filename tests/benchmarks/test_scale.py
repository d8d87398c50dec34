"""The benchmark of scale, at a small size: its claims about sizes, not about times."""

from __future__ import annotations

from benchmarks.scale_model import parameter_count
from benchmarks.scale_plans import plan_load, plan_save
from benchmarks.scale_report import FILES_MAX, IMBALANCE_MAX, as_markdown


def test_the_state_is_planned_from_four_processes_to_one() -> None:
    assert 405e9 < parameter_count() < 406e9
    save, index = plan_save(4)
    assert save.state_bytes == 10 * parameter_count()
    assert save.imbalance < IMBALANCE_MAX
    assert save.most_files <= FILES_MAX
    load = plan_load(index, saved=4, loading=1, tensor=4)
    assert load.wanted_bytes == save.state_bytes
    assert load.read_bytes < 1.05 * load.wanted_bytes
    text = as_markdown([save], [load], "this machine")
    assert "| files per process | 15 | 16 | met |" in text
