"""A fixture that runs the command in this process."""

from __future__ import annotations

import sys
from typing import NamedTuple, Protocol

import pytest

from cordwood.cli.main import main


class Ran(NamedTuple):
    """The output of a command and its exit code."""

    code: int
    out: str
    err: str


class Run(Protocol):
    def __call__(self, *arguments: object) -> Ran: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["cordwood", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, out, err)

    return call
