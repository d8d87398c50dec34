"""The layers of docs/design/0001-the-waist.md, and what each may touch, read from the imports."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src"

# The layer of each module or package directly under cordwood. A module imports its own or lower.
# storage is above io: transactions write the leaves that io hands them; io opens no file to write.
LAYERS = {
    "dtypes": 0,
    "errors": 0,
    "public_names": 0,
    "did_you_mean": 0,
    "message_text": 0,
    "index": 1,
    "keypath": 1,
    "sharding": 1,
    "tree": 1,
    "encoding": 2,
    "notebook": 2,
    "plan": 2,
    "recipes": 2,
    "serving": 2,
    "state_dict": 2,
    "threads": 2,
    "devices": 3,
    "io": 3,
    "processes": 3,
    "saving": 6,
    "bulk": 6,
    "storage": 4,
    "formats": 5,
    "loading": 6,
    "tiles": 7,
    "policies": 6,
    "combining": 7,
    "comparing": 7,
    "converting": 7,
    "copying": 7,
    "deltas": 7,
    "removing": 7,
    "verifying": 7,
    "api": 8,
    "msgpack": 8,
    "manager": 9,
    "publishing": 9,
    "results": 10,
    "__main__": 10,
    "cli": 10,
    "compat": 10,
    "testing": 10,
    "viewer": 10,
}

# The rooms that may use files, processes, threads and sockets.
MACHINE_ROOMS = (
    "bulk",
    "cli",
    "devices",
    "io",
    "processes",
    "saving",
    "serving",
    "storage",
    "threads",
    "viewer",
)

PEERS = {"flax", "eformer", "orbax", "safetensors", "equinox", "optax", "chex", "msgspec"}

# Reached inside the functions that meet them, so that `import cordwood` stays quick.
LAZY = {
    *("jax", "jaxlib", "ml_dtypes", "rich", "jinja2", "IPython", "treescope"),
    *("boto3", "huggingface_hub", "numcodecs", "obstore", "tensorstore"),
}

# A format is no other's business, but the directories hold their trees as safetensors files do,
# and Orbax reads them by an index of its own. Orbax's arrays are zarr's, and those of its older
# versions Flax's msgpack too.
# `ocdbt` is no format by itself: Orbax, Levanter and jax have databases of arrays.
SHARED = {
    "cordwood.formats.hugging_face": ("cordwood.formats.safetensors.",),
    "cordwood.formats.ocdbt": ("cordwood.formats.zarr.",),
    "cordwood.formats.ocdbt_arrays": (
        *("cordwood.formats.ocdbt.", "cordwood.formats.orbax.", "cordwood.formats.zarr."),
    ),
    "cordwood.formats.orbax": (
        *("cordwood.formats.flax_msgpack.", "cordwood.formats.ocdbt.", "cordwood.formats.zarr."),
    ),
    "cordwood.formats.packs": ("cordwood.formats.orbax.", "cordwood.formats.safetensors."),
}

# Modules directly under formats/ that every format may use, and those that work on every format.
# The table has the modules of formats as names.
FOR_EVERY_FORMAT = (
    "foreign_files",
    "format_losses",
    "format_protocol",
    "load_format",
    "new_directory",
    "open_single_file",
    "place",
    "refuse_other_tools",
    "save_single_file",
    "stored_item",
    "step_names",
    "step_record",
    "suffixes",
    "table",
    "version_record",
)
KNOW_EVERY_FORMAT = (
    *("choose_format", "detect_directory", "detect_file", "detect_format", "detect_in_store"),
    *("detect_on_hub", "explain_absence", "list_steps", "plan_save", "stored_trees", "tool_steps"),
)

# Modules for files, processes, threads, sockets.
MACHINE = {
    "asyncio",
    "concurrent",
    "ctypes",
    "fcntl",
    "io",
    "mmap",
    "multiprocessing",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
}

# Names that touch neither a file nor a thread of ours; an executor is the caller's.
HARMLESS = {
    "concurrent": {"Executor"},
    "os": {"PathLike", "fspath", "fsdecode"},
    "threading": {"local"},
}

# Methods of a path, or of an entry of a directory, that look at a disk.
LOOKING = {
    "exists",
    "is_dir",
    "is_file",
    "is_symlink",
    "iterdir",
    "lstat",
    "mkdir",
    "read_bytes",
    "read_text",
    "rglob",
    "rmdir",
    "stat",
    "unlink",
    "write_bytes",
    "write_text",
}

# What a plan is made of: arithmetic on values.
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "pkgutil",  # data files of the package
    "re",
    "shlex",
    "typing",
    "zlib",
}

FILES = sorted(ROOT.rglob("*.py"))


class Import(NamedTuple):
    module: str  # dotted, absolute
    names: tuple[str, ...]  # of `from module import names`
    line: int
    runs_on_import: bool  # neither inside a function nor under TYPE_CHECKING


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return the module or package directly under cordwood; '' for cordwood itself."""
    return module.split(".")[1] if "." in module else ""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> list[Import]:
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    return list(_walk(tree_of(path), package, runs=True))


def _walk(node: ast.AST, package: list[str], *, runs: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, (), child.lineno, runs)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            module = ".".join([*base, *([child.module] if child.module else [])])
            yield Import(module, tuple(alias.name for alias in child.names), child.lineno, runs)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _walk(child, package, runs=False)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for kept in child.body:
                yield from _walk(ast.Module([kept], []), package, runs=False)
            for other in child.orelse:
                yield from _walk(ast.Module([other], []), package, runs=runs)
        else:
            yield from _walk(child, package, runs=runs)


def targets_of(statement: Import) -> list[str]:
    """Return the modules of cordwood that a statement imports."""
    if statement.module == "cordwood":
        return [f"cordwood.{name}" for name in statement.names] or ["cordwood"]
    return [statement.module] if statement.module.startswith("cordwood.") else []


def where(path: Path, statement: Import) -> str:
    return f"{path.relative_to(ROOT)}:{statement.line} imports {statement.module}"


def each(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("source", files, ids=lambda path: str(path.relative_to(ROOT)))


def only(part: str) -> list[Path]:
    return [path for path in FILES if part_of(module_of(path)) == part]


def outside(*parts: str) -> list[Path]:
    return [path for path in FILES if part_of(module_of(path)) not in parts]


def test_there_are_files() -> None:
    assert len(FILES) > 20


def test_every_module_has_a_layer() -> None:
    parts = {part_of(module_of(path)) for path in FILES} - {""}
    assert parts <= set(LAYERS), f"add {sorted(parts - set(LAYERS))} to LAYERS and to docs/design"


@each(outside(""))
def test_imports_go_down(source: Path) -> None:
    part = part_of(module_of(source))
    for statement in imports_of(source):
        for target in targets_of(statement):
            other = part_of(target)
            place = where(source, statement)
            assert other in LAYERS, f"{place}: import the module, not the package"
            assert LAYERS[other] <= LAYERS[part], (
                f"{place}: {part} is in L{LAYERS[part]}, {other} in L{LAYERS[other]}"
            )
            assert other != "testing" or part == "testing", place


@each(only("formats"))
def test_formats_do_not_import_each_other(source: Path) -> None:
    module = module_of(source)
    package = ".".join(module.split(".")[:3])
    if package.removeprefix("cordwood.formats.") in KNOW_EVERY_FORMAT:
        return
    shared = tuple(f"cordwood.formats.{name}." for name in FOR_EVERY_FORMAT)
    for statement in imports_of(source):
        for target in targets_of(statement):
            if part_of(target) == "formats":
                allowed = (f"{package}.", *shared, *SHARED.get(package, ()))
                assert f"{target}.".startswith(allowed), where(source, statement)


@each([path for room in ("storage", "saving", "io", "devices", "processes") for path in only(room)])
def test_what_moves_bytes_knows_no_format(source: Path) -> None:
    for statement in imports_of(source):
        for word in ("msgpack", "safetensors"):
            assert word not in statement.module, where(source, statement)


def test_files_import_each_other_in_no_circle() -> None:
    """An import counts wherever it is made: in a function, or for the type checker only."""
    modules = {module_of(path) for path in FILES}
    graph = {
        module_of(path): {
            name
            for statement in imports_of(path)
            for name in _modules_imported(statement, modules)
            if name != module_of(path)
        }
        for path in FILES
    }
    assert not circles_of(graph)


def _modules_imported(statement: Import, modules: set[str]) -> Iterator[str]:
    """Yield the files that a statement imports: modules, or the packages of imported names."""
    for target in targets_of(statement):
        names = [f"{target}.{name}" for name in statement.names]
        yield from [name for name in names if name in modules]
        if target in modules and not (names and all(name in modules for name in names)):
            yield target


def circles_of(graph: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Return the sets of nodes from each of which all others of the set can be reached."""
    reached = {node: _reachable(graph, node) for node in graph}
    circles: dict[str, set[str]] = {}
    for node in graph:
        circle = {other for other in reached[node] if node in reached[other]}
        if circle:
            circles[min(circle)] = circle
    return [*circles.values()]


def _reachable(graph: Mapping[str, Collection[str]], node: str) -> set[str]:
    reached: set[str] = set()
    todo = [*graph[node]]
    while todo:
        following = todo.pop()
        if following not in reached:
            reached.add(following)
            todo += graph.get(following, ())
    return reached


@pytest.mark.parametrize(
    ("arrows", "circles"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "ca", "c": ""}, [{"a", "b"}]),
        ({"a": "b", "b": "c", "c": "a", "d": "ae", "e": "d"}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_the_finder_of_circles(arrows: dict[str, str], circles: list[set[str]]) -> None:
    assert circles_of(arrows) == circles


def test_no_module_is_in_two_lists_of_exceptions() -> None:
    assert not set(FOR_EVERY_FORMAT) & set(KNOW_EVERY_FORMAT)


@each([*only("plan"), *only("policies"), *only("recipes")])
def test_plans_are_pure(source: Path) -> None:
    for statement in imports_of(source):
        if statement.module.startswith("cordwood"):
            continue
        assert statement.module.split(".")[0] in PURE, where(source, statement)
    calls = {
        node.func.id
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}


@each(outside(*MACHINE_ROOMS, "testing"))
def test_only_some_rooms_touch_the_machine(source: Path) -> None:
    for statement in imports_of(source):
        root = statement.module.split(".")[0]
        if root in HARMLESS:
            used = set(statement.names) or _attributes(source, root)
            assert used <= HARMLESS[root], f"{where(source, statement)} for {sorted(used)}"
        else:
            assert root not in MACHINE, where(source, statement)
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "np.fromfile"):
            name = ast.unparse(node.func)
            pytest.fail(f"{source.relative_to(ROOT)}:{node.lineno} calls {name}()")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in LOOKING, (
                f"{source.relative_to(ROOT)}:{node.lineno} calls .{node.func.attr}()"
            )


def _attributes(source: Path, name: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }


@each(outside("testing"))
def test_peers_are_not_imported(source: Path) -> None:
    for statement in imports_of(source):
        assert statement.module.split(".")[0] not in PEERS, where(source, statement)


@each(FILES)
def test_jax_is_imported_where_it_is_met(source: Path) -> None:
    for statement in imports_of(source):
        if statement.runs_on_import:
            place = where(source, statement)
            assert statement.module.split(".")[0] not in LAZY, f"{place} at top level"


@each(outside("storage", "io"))
def test_clients_and_codecs_stay_where_bytes_are_moved(source: Path) -> None:
    for statement in imports_of(source):
        name = statement.module.split(".")[0]
        assert name not in {"huggingface_hub", "numcodecs", "obstore", "tensorstore"}, where(
            source, statement
        )


@each([path for path in FILES if path.parent.name != "object_stores"])
def test_obstore_is_known_to_one_room(source: Path) -> None:
    for statement in imports_of(source):
        name = statement.module.split(".")[0]
        assert name not in {"boto3", "botocore", "obstore"}, where(source, statement)


@each([path for path in FILES if path.stem not in ("private_jax", "coordination_client")])
def test_private_names_of_jax_are_in_two_files(source: Path) -> None:
    for statement in imports_of(source):
        assert not statement.module.startswith("jax._src"), where(source, statement)
    assert "jax._src" not in source.read_text(), f"{source.relative_to(ROOT)} reaches into jax._src"


@each(FILES)
def test_nothing_is_pickled_or_evaluated(source: Path) -> None:
    for statement in imports_of(source):
        assert statement.module.split(".")[0] not in ("pickle", "marshal", "shelve", "dill"), where(
            source, statement
        )
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "__import__"), (
                f"{source.relative_to(ROOT)}:{node.lineno} calls {node.func.id}()"
            )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import jax", ("jax", True)),
        ("def f():\n    import jax", ("jax", False)),
        ("if TYPE_CHECKING:\n    import jax", ("jax", False)),
        ("try:\n    import jax\nexcept ImportError:\n    pass", ("jax", True)),
        ("class A:\n    from jax import numpy", ("jax", True)),
        ("from ..tree import leaves", ("cordwood.tree", True)),
        ("from . import read", ("cordwood.io", True)),
    ],
)
def test_the_reader_of_imports(code: str, expected: tuple[str, bool]) -> None:
    (statement,) = _walk(ast.parse(code), ["cordwood", "io"], runs=True)
    assert (statement.module, statement.runs_on_import) == expected
