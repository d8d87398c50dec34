"""`checkpoint["` and the Tab key, with IPython's own completer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cordwood

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
completer = pytest.importorskip("IPython.core.completer")


def test_key_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    leaf = np.zeros(1, np.float32)
    cordwood.save(tmp_path / "a", {"params": {"w": leaf, "b": leaf}, "opt": {"mu": leaf}})
    cordwood.save(tmp_path / "b", {f"layer{i}": {"w": leaf, "b": leaf} for i in range(5000)})
    shell = interactiveshell.InteractiveShell()
    shell.history_manager.enabled = False
    with cordwood.open(tmp_path / "a") as small, cordwood.open(tmp_path / "b") as large:
        shell.user_ns.update(small=small, large=large)

        def complete(text: str) -> list[str]:
            with completer.provisionalcompleter():
                return [each.text for each in shell.Completer.completions(text, len(text))]

        assert complete('small["') == ["opt/mu", "params/b", "params/w"]
        assert complete("small['params/") == ["params/b", "params/w"]
        assert complete('large["layer4999/') == ["layer4999/b", "layer4999/w"]
        assert len(complete('large["')) == 500  # as many as IPython shows
