"""The blocks of docs/manager.md and docs/moving-over.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import flax.training.checkpoints
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from click.testing import CliRunner

import cordwood
from cordwood.cli.main import cli
from tests.children import SRC
from tests.manager.counters import Counter

STATE: dict[str, Any] = {"params": {"w": np.ones(3, np.float32)}, "opt_state": {"mu": np.zeros(3)}}


class Writer:
    """A writer like that of TensorBoard."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((name, value, step))


def blocks(page: str, language: str) -> list[str]:
    text = (SRC.parent / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(page: str, **names: Any) -> dict[str, Any]:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_manager(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(
        "manager.md",
        cw=cordwood,
        np=np,
        state=STATE,
        params=STATE["params"],
        Batches=Counter,
        writer=Writer(),
    )
    assert "there is no such directory; check the path" in capsys.readouterr().out
    assert names["start"] == 0
    assert names["as_saved"]["data"] == {"next": 0, "stride": 1}
    assert (names["alone"]["w"] == names["ema"]["w"]).all()
    assert set(names["found"].tree["opt_state"]) == {"momentum"}
    with names["manager"] as manager:
        manager.save(200, STATE)
    assert [row[::2] for row in names["writer"].rows] == [
        ("checkpoint/seconds", 200),
        ("checkpoint/bytes", 200),
    ]


def test_moving_over_and_back(tmp_path: Path) -> None:
    state, params = STATE, STATE["params"]
    with ocp.CheckpointManager(tmp_path / "composite") as theirs:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            params=ocp.args.StandardSave(params),
            rng=ocp.args.JaxRandomKeySave(jax.random.key(3)),
        )
        theirs.save(20, args=args)
        theirs.wait_until_finished()
    (tmp_path / "composite" / "20" / "data").mkdir()
    state_of_data = '{"next": 7, "stride": 1}'
    (tmp_path / "composite" / "20" / "data" / "process_0-of-1.json").write_text(state_of_data)
    batches = Counter()
    back = tmp_path / "back"
    names = run(
        "moving-over.md",
        cw=cordwood,
        state=state,
        params=params,
        batches=batches,
        root_of_orbax=back,
    )
    assert next(batches) == 7
    assert (jax.random.key_data(names["rng"]) == jax.random.key_data(jax.random.key(3))).all()
    with ocp.CheckpointManager(back) as theirs:
        restored = theirs.restore(21, args=ocp.args.StandardRestore(state))
    np.testing.assert_array_equal(restored["params"]["w"], state["params"]["w"])
    (tmp_path / "flax").mkdir()
    convert, move = blocks("moving-over.md", "sh")[-1].splitlines()
    result = CliRunner().invoke(cli, convert.split()[1:])
    assert result.exit_code == 0, result.output
    _, source, target = move.split()
    Path(source).rename(target)
    restored = flax.training.checkpoints.restore_checkpoint(str(tmp_path / "flax"), state)
    np.testing.assert_array_equal(restored["params"]["w"], state["params"]["w"])


def test_the_table_of_names_is_that_of_the_hints() -> None:
    from cordwood.manager.argument_hints import ARGUMENTS, ATTRIBUTES

    page = (SRC.parent / "docs" / "moving-over.md").read_text()
    for name in ("latest_step", "all_steps", "best_step", "item_metadata", "wait_until_finished"):
        assert name in ATTRIBUTES
        assert name in page
    for name in ("save_interval_steps", "max_to_keep", "keep_period", "best_fn", "save_on_steps"):
        assert name in ARGUMENTS
        assert name in page
