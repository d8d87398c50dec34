"""SIGKILL of one process at a random moment of a save: the checkpoint before it always loads.

`CORDWOOD_KILLS` says how often: 6 in the normal tests, 50 in `make soak`.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import cordwood
from tests.processes.group import Group, Result

KILLS = int(os.environ.get("CORDWOOD_KILLS", "6"))
SILENCE_SECONDS = 2.0
TIMEOUT_SECONDS = 5.0
ROWS = 512  # 17 MB: a save takes about a fifth of a second


def told(results: list[Result], victim: int) -> list[str]:
    """What the survivors say; where process 0 died, jax may have ended them."""
    return [
        "ended by jax" if result.dead else result.error or "saved"
        for index, result in enumerate(results)
        if index != victim
    ]


@pytest.mark.parametrize("count", [2, 4])
def test_a_process_is_killed_in_the_middle_of_a_save(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(count)
    path = tmp_path / "x"
    held = 0  # the step that the checkpoint holds
    lines = []
    for _ in range(KILLS // 2):
        with Group(count) as group:
            group.run("directories.hasten", silence_seconds=SILENCE_SECONDS, mark_seconds=5.0)
            if held:
                found = group.run("directories.load", path=str(path), steps=[held], rows=ROWS)
                assert found == [held] * count
            step = held + 1
            begun = time.monotonic()
            group.run("directories.save", path=str(path), step=step, rows=ROWS)
            seconds = time.monotonic() - begun

            victim = rng.randrange(count)
            wait = rng.uniform(0, 1.2 * seconds)
            group.start(
                "directories.save",
                path=str(path),
                step=step + 1,
                rows=ROWS,
                background=rng.random() < 0.5,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            time.sleep(wait)
            group.kill(victim)
            begun = time.monotonic()
            results = group.results()
            took = time.monotonic() - begun
        assert cordwood.verify(path).unverified_bytes == 0
        held = cordwood.load(path, to="numpy")["local"]["step"]
        assert held in (step, step + 1)
        texts = told(results, victim)
        for text in texts:
            if text == "saved":
                assert held == step + 1
            elif victim:
                assert text.startswith(f"ProcessError: process {victim} "), text
        assert took < SILENCE_SECONDS + 2 * TIMEOUT_SECONDS
        lines.append(
            f"{count} processes, a save of {seconds:.2f} s: {victim} killed after {wait:.2f} s, "
            f"{'new' if held > step else 'old'} checkpoint; the others, {took:.1f} s later: "
            f"{'; '.join(sorted({text[:64] for text in texts}))}"
        )
    if "CORDWOOD_KILLS" in os.environ:
        with capsys.disabled():
            print("", *lines, sep="\n")
    cordwood.gc(path)
    assert cordwood.load(path, to="numpy")["local"]["step"] == held
