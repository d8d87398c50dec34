"""The benchmark of parts, at a small size: its numbers of bytes, not its times."""

from __future__ import annotations

from pathlib import Path

from benchmarks.parts import MIB, Counted, measure, report


def test_the_table(tmp_path: Path) -> None:
    text = report(16 * MIB, tmp_path)
    assert text.count("| 16 | 2 | 1 | 16 |") == 2  # small rows come in one range
    assert text.count("| 4,096 | 2 | 4 | 2 |") == 1  # large rows come separately
    assert text.count("| 4,096 | 2 | 4 | 4 |") == 1  # rounded out to blocks
    assert text.count("| 16 | 2 | 1 | 2 | 1 | 2 |") == 1  # along the leading axis: no extra bytes


def test_the_choice_is_one_of_the_two(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(16 * MIB))
    with Counted(tmp_path / "f") as file:
        costs = measure(file, MIB, None)
        assert costs["chosen"][:2] == costs["a range per row"][:2] == (16, 2 * MIB)
        costs = measure(file, MIB // 4, None)
        assert costs["chosen"][:2] == costs["one range"][:2] == (1, 16 * MIB - 7 * MIB // 32)
        assert costs["a range per row"][:2] == (64, 2 * MIB)
