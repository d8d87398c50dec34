"""The map in CONTRIBUTING.md: each file exists and defines the name beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"\| (Where .*\?) \| `([\w/]+\.py)` \| `(\w+)` \|")
ROWS = ROW.findall((ROOT / "CONTRIBUTING.md").read_text())


def test_the_map_answers_many_questions() -> None:
    assert len({question for question, _, _ in ROWS}) == len(ROWS)
    assert len([row for row in ROWS if _stems(row[0]) & _stems(_name_of(row[1]))]) >= 50


def test_the_map_leads_to_every_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "cordwood").glob("*/__init__.py")}
    assert rooms <= {file.split("/")[0] for _, file, _ in ROWS}


def test_no_question_quotes_the_name_of_a_file() -> None:
    quoted = [
        question
        for question, file, _ in ROWS
        if " " in _name_of(file) and _name_of(file) in question
    ]
    assert not quoted, "ask for what the file does, in other words than its name"


@pytest.mark.parametrize(("question", "file", "name"), ROWS, ids=[name for _, _, name in ROWS])
def test_the_file_of_each_answer_defines_its_name(question: str, file: str, name: str) -> None:
    path = ROOT / "src" / "cordwood" / file
    assert path.is_file(), f"{question} {file} does not exist"
    assert name in _definitions(path), f"{question} {file} does not define {name}"


def _name_of(file: str) -> str:
    return Path(file).stem.replace("_", " ")


def _stems(text: str) -> set[str]:
    """Return the words of a text without their endings."""
    return {
        re.sub("(ies|ing|ed|es|s|e)$", "", word) for word in re.findall("[a-z0-9]+", text.lower())
    }


def _definitions(path: Path) -> set[str]:
    """Return the functions, classes and constants that a module defines."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names
