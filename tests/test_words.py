"""The house rules of words and names, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import cordwood
from tests.contract import PUBLIC_MODULES

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
FOLDERS = ("src", "tests", "benchmarks", "demo", "examples")

# A docstring begins with an imperative verb (functions) or a noun phrase (classes, modules).
BAD_HEADS = {"What", "Whether", "How", "Where", "As", "Of", "Who", "Those", "That", "Which"}

# A variable is named by its type or its role: these words say neither.
FILLERS = {
    *("found", "known", "given", "wanted", "own", "there", "left", "now", "told"),
    *("rest", "kept", "taken", "ours", "theirs", "mine", "gone", "apart", "settled", "lane"),
}
MAX_FILLERS = {"src": 60, "tests": 190}

# Private words, which a search engine does not know. "Killed", "missing", "reported" and "files of
# cordwood" are plain.
PRIVATE_IN_NAMES = {"apart", "dead", "gone", "lane", "ours", "settled", "told"}
PRIVATE_IN_PAGES = ("dead save", "told to end")

MAX_MODULES = 32  # of a folder: its listing is read at one glance
MAX_PUBLIC_NAMES = 44

# Functions that several formats have, as formats/format_protocol.py describes them, and those that
# call the one of a format.
PROTOCOL_FUNCTIONS = {"item_names", "plan_save", "steps_beside"}

# Modules that several formats have, as formats/format_protocol.py describes them; and the index
# file of a format of directories.
PROTOCOL_MODULES = {
    "checkpoint_files",
    "format",
    "read_index",
    "write",
    "write_in_tasks",
}


def files_of(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def module_of(file: Path) -> str:
    parts = file.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Words(NamedTuple):
    """The first words of docstrings and the names of variables, each with its place."""

    heads: list[tuple[str, str]]
    variables: set[tuple[str, int, str]]  # file, line of the function, name


@cache
def words() -> Words:
    """Read all files once."""
    words = Words([], set())
    for folder in FOLDERS:
        for file in files_of(folder):
            _read(tree_of(file), str(file.relative_to(ROOT)), 0, words)
    return words


def _read(node: ast.AST, file: str, line: int, words: Words) -> None:
    """Collect the words below a node of the function that begins at a line."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        docstring = ast.get_docstring(node)
        if docstring:
            first = getattr(node, "lineno", 1)
            words.heads.append((docstring.split()[0].strip(",.:"), f"{file}:{first}"))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        line = node.lineno
    elif isinstance(node, ast.arg):
        words.variables.add((file, line, node.arg))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        words.variables.add((file, line, node.id))
    for child in ast.iter_child_nodes(node):
        _read(child, file, line, words)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [f"{place} begins with {head}" for head, place in words().heads if head in BAD_HEADS]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", MAX_FILLERS)
def test_variables_are_named_by_type_or_role(folder: str) -> None:
    """A function counts once for each filler that is one of its parameters or variables."""
    fillers = [
        f"{file}:{line} {name}"
        for file, line, name in sorted(words().variables)
        if name in FILLERS and file.startswith(f"{folder}/")
    ]
    assert len(fillers) <= MAX_FILLERS[folder], "\n".join([f"{len(fillers)} of them:", *fillers])


def test_tests_have_plain_names() -> None:
    names = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for file in files_of("tests")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if PRIVATE_IN_NAMES & set(node.name.split("_"))
    ]
    assert not names, "\n".join(names)


def test_pages_have_plain_words() -> None:
    texts = {page: " ".join(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")}
    private = [
        (page.name, word) for page in texts for word in PRIVATE_IN_PAGES if word in texts[page]
    ]
    assert not private


def test_folders_are_short() -> None:
    folders = {file.parent for file in files_of("src/cordwood")}
    counts = {folder: len(list(folder.glob("*.py"))) for folder in folders}
    long = {str(folder.relative_to(SRC)): n for folder, n in counts.items() if n > MAX_MODULES}
    assert not long, f"at most {MAX_MODULES} modules: {long}"


def test_a_module_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for file in files_of("src/cordwood"):
        of_a_format = file.is_relative_to(SRC / "cordwood/formats")
        if _has_names_of_a_peer(file) or file.stem.startswith("__"):
            continue
        if not (of_a_format and file.stem in PROTOCOL_MODULES):
            places.setdefault(file.stem, []).append(str(file.relative_to(SRC)))
    twice = [f"{name}: {files}" for name, files in places.items() if len(files) > 1]
    assert not twice, "\n".join(twice)


def test_a_name_means_one_thing() -> None:
    """Formats may have functions and types of the same name: each its own `encode_index`."""
    places: dict[str, set[str]] = {}
    for file in files_of("src/cordwood"):
        if _has_names_of_a_peer(file):
            continue
        name_of_file = str(file.relative_to(SRC))
        place = "formats" if file.is_relative_to(SRC / "cordwood/formats") else name_of_file
        for name in _definitions(tree_of(file)):
            places.setdefault(name, set()).add(place)
    twice = [
        f"{name}: {sorted(files)}"
        for name, files in sorted(places.items())
        if len(files) > 1 and name not in PROTOCOL_FUNCTIONS
    ]
    assert not twice, "\n".join(twice)


def _has_names_of_a_peer(file: Path) -> bool:
    """Return True for modules that have the names of Orbax's, which they replace."""
    return file.is_relative_to(SRC / "cordwood/compat/orbax")


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions, and the classes and names of types, of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)


@pytest.mark.parametrize("name", sorted(PROTOCOL_MODULES))
def test_each_protocol_module_is_in_several_formats(name: str) -> None:
    assert len(list((SRC / "cordwood/formats").rglob(f"{name}.py"))) > 1


def test_only_public_modules_list_their_names() -> None:
    modules = {
        module_of(file)
        for file in files_of("src/cordwood")
        for node in tree_of(file).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    }
    assert modules <= PUBLIC_MODULES


def test_cordwood_offers_few_names() -> None:
    assert len(cordwood.__all__) <= MAX_PUBLIC_NAMES
