"""The test modules that use public names only: a change of the inside must leave them as they are.

A test module belongs to the contract if neither the module, nor a test helper that it imports, nor
a fixture of a conftest.py that it uses, names an internal module of cordwood. The inside of
`tests.faults` does not count: where the system calls of cordwood change, fault injection follows,
and the tests that use it do not. `tests/conftest.py` gives the tests of such a module the marker
`contract`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PUBLIC_MODULES = {
    "cordwood",
    "cordwood.compat",
    "cordwood.compat.eformer",
    "cordwood.compat.eformer.pytree",
    "cordwood.compat.eformer.serialization",
    "cordwood.compat.flax",
    "cordwood.compat.orbax",
    "cordwood.compat.orbax.args",
    "cordwood.compat.orbax.checkpoint_managers",
    "cordwood.compat.orbax.checkpoint_utils",
    "cordwood.compat.orbax.experimental",
    "cordwood.compat.orbax.experimental.v1",
    "cordwood.compat.orbax.experimental.v1.training",
    "cordwood.compat.orbax.handlers",
    "cordwood.compat.orbax.utils",
    "cordwood.errors",
    "cordwood.keypath",
    "cordwood.msgpack",
    "cordwood.policies",
    "cordwood.recipes",
    "cordwood.results",
    "cordwood.state_dict",
    "cordwood.testing",
    "cordwood.testing.strategies",
}
_HELPERS = {"tests", "benchmarks", "demo", "examples"}
_FAULTS = ROOT / "tests" / "faults"  # stands between the tests and the system calls of cordwood
_SCENARIOS = ROOT / "tests" / "processes"  # tests.processes.group imports modules there by name
_SCENARIO = re.compile(r"(\w+)\.\w+")
_DOTTED = re.compile(r"\bcordwood(?:\.\w+)+")  # in strings: patches, and programs of children


class _Uses(NamedTuple):
    """The names in one file, or in a part of it."""

    names: frozenset[str]  # dotted: imports, attributes of the package, and those in strings
    words: frozenset[str]  # arguments of functions and strings: the names of fixtures


@cache
def internal_names(path: Path) -> frozenset[str]:
    """Return the internal names that a test module uses, each with the file that has it."""
    return frozenset(
        f"{file.relative_to(ROOT)}: {name}"
        for file, uses in _uses_of_module(path)
        for name in uses.names
        if _is_internal(name)
    )


def _uses_of_module(path: Path) -> Iterator[tuple[Path, _Uses]]:
    """Yield the uses of a test module, of its helpers, of their helpers, and of its fixtures."""
    files, queue = {path}, [path]
    while queue:
        file = queue.pop()
        yield file, _uses(file)
        new = _helpers(file) - files
        files |= new
        queue += new
    words = _uses(path).words
    for folder in path.parents[: len(path.relative_to(ROOT).parts) - 1]:
        conftest = folder / "conftest.py"
        if conftest.exists():
            yield conftest, _uses_of_fixtures(conftest, words)


@cache
def _helpers(path: Path) -> frozenset[Path]:
    """Return the helper modules that a file imports, and those whose scenarios it has run."""
    names, words = _uses(path)
    files = {_file_of(name) for name in names if name.split(".")[0] in _HELPERS}
    scenarios = filter(None, map(_SCENARIO.fullmatch, words))
    files |= {_SCENARIOS / f"{match[1]}.py" for match in scenarios}
    files -= {file for file in files if file is not None and file.is_relative_to(_FAULTS)}
    return frozenset(file for file in files if file is not None and file.exists())


def _file_of(name: str) -> Path | None:
    """Return the file of a helper module, or of the one that a name is imported from."""
    file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    if file.exists():
        return file
    return file.parent.with_suffix(".py")


def internal_names_in(source: str) -> list[str]:
    """Return the internal names in the text of a module, without those of its helpers."""
    names = _uses_in([ast.parse(source)], ROOT / "tests" / "any.py").names
    return sorted(filter(_is_internal, names))


@cache
def _uses(path: Path) -> _Uses:
    return _uses_in([ast.parse(path.read_text())], path)


@cache
def _uses_of_fixtures(path: Path, words: frozenset[str]) -> _Uses:
    """Return what the fixtures of a conftest.py use whose names are among some words."""
    statements = ast.parse(path.read_text()).body
    fixtures = [node for node in statements if isinstance(node, ast.FunctionDef)]
    used = [node for node in fixtures if node.name in words]
    imports = [node for node in statements if node not in fixtures]
    return _uses_in([*imports, *used] if used else [], path)


def _uses_in(trees: Sequence[ast.AST], path: Path) -> _Uses:
    names: set[str] = set()
    words: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*package, *filter(None, [node.module])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names |= {text for text in [ast.unparse(node)] if _DOTTED.fullmatch(text)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(_DOTTED.findall(node.value))
            words.add(node.value)
        elif isinstance(node, ast.arg):
            words.add(node.arg)
    return _Uses(frozenset(names), frozenset(words))


@cache
def _is_internal(name: str) -> bool:
    """Return whether a dotted name is in an internal module of cordwood, or begins with `_`."""
    if name.split(".")[0] != "cordwood" or name == _entry_point():
        return False
    module = _module_of(name)
    if module not in PUBLIC_MODULES:
        return True
    first = name.removeprefix(module).lstrip(".").split(".")[0]
    return first.startswith("_") and not first.endswith("__")


def _module_of(name: str) -> str:
    """Return the longest part of a dotted name that is a module."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        file = ROOT.joinpath("src", *parts[:count])
        if file.with_suffix(".py").exists() or file.is_dir():
            return ".".join(parts[:count])
    return parts[0]


@cache
def _entry_point() -> str:
    """Return the function of the command, as pyproject.toml names it."""
    (target,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
    return target.replace(":", ".")
