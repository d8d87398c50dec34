"""The public names: adding or removing one is a decision, made here and in CHANGELOG.md."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

import cordwood
from cordwood import errors
from tests.contract import PUBLIC_MODULES, ROOT

MAX_NAMES = 44  # of `cordwood` itself: a reader sees them all in one screen

# The names of each public module.
NAMESPACES = {
    "cordwood": """
        Checkpoint CheckpointManager CordwoodError DictKey EverySeconds EverySteps KeepBest
        KeepEvery KeepLast Mirror PendingSave StepReader StoredLeaf
        WeightFollower WeightPublisher apply_delta combine convert copy delta detect
        diff from_bytes from_state_dict gc load load_from_file match_partition_rules merge_lora
        msgpack_restore msgpack_serialize open open_combined register_serialization_state
        release_memory save save_async save_to_file storage_options to_bytes to_state_dict
        tree_deserialize_leaves tree_serialize_leaves verify
    """,
    "cordwood.compat.eformer.serialization": """
        is_array_like join_key leaf_key_paths match_partition_rules tree_deserialize_leaves
        tree_serialize_leaves
    """,
    "cordwood.errors": """
        CordwoodError CorruptionError FileChangedError FormatError IncompleteCheckpointError
        LimitError LossError MismatchError NotACheckpointError PendingSaveError PrefixError
        ProcessError StepError StorageError TruncatedError UnsupportedFormatError
        UnsupportedLeafError
    """,
    "cordwood.keypath": """
        DictKey format_path parse_path
    """,
    "cordwood.msgpack": """
        MAX_CHUNK_SIZE compress_bytes decompress_bytes from_bytes from_compressed_bytes
        get_serialization_info load_from_file msgpack_restore msgpack_serialize save_to_file
        to_buffers to_bytes to_compressed_bytes validate_serializable
    """,
    "cordwood.policies": """
        AtSteps EverySeconds EveryStep EverySteps KeepAll KeepAt KeepBest KeepEvery KeepLast
        KeepPolicy KeepWithin Moment OnPreemption SavePolicy SavedStep WhenIdle
    """,
    "cordwood.recipes": """
        Recipe Rule find_recipe
    """,
    "cordwood.results": """
        Conversion CopyReport DeltaReport Detected Diff GcReport LeafDiff ManagerProblem
        PlannedStep Progress RecipeTable Resplittable Restored RetentionPlan SaveReport Stateful
        StepPlaces StorageOptions Verification
    """,
    "cordwood.state_dict": """
        current_path from_state_dict is_serializable register_serialization_state to_state_dict
    """,
    "cordwood.testing": """
        BitFlip FlipReport Flipped assert_trees_equal flip_bits random_flips strategies
    """,
    "cordwood.testing.strategies": """
        Pair dict_keys jax_arrays key_paths leaves numpy_arrays numpy_scalars prng_keys
        python_values trees
    """,
}
# Modules with the names of the peer modules that they replace; tests/compat compares them.
PEER_MODULES = [
    "cordwood.compat.flax",
    "cordwood.compat.eformer.pytree",
    "cordwood.compat.orbax",
    "cordwood.compat.orbax.args",
    "cordwood.compat.orbax.handlers",
    "cordwood.compat.orbax.checkpoint_managers",
    "cordwood.compat.orbax.checkpoint_utils",
    "cordwood.compat.orbax.utils",
    "cordwood.compat.orbax.experimental.v1",
    "cordwood.compat.orbax.experimental.v1.training",
]
MOVED: dict[str, tuple[str, ...]] = vars(cordwood)["_MOVED"]
NAMES = [(module, name) for module, names in NAMESPACES.items() for name in names.split()]

SIGNATURES = {
    "save": [
        *["path", "tree", "*", "format", "compression", "prefix"],
        *["max_shard_bytes", "metadata", "orbax", "page_cache", "progress", "timeout_seconds"],
    ],
    "save_async": [
        *["path", "tree", "*", "format", "compression", "prefix", "metadata"],
        *["orbax", "page_cache", "staging_bytes", "device_copies", "progress", "timeout_seconds"],
    ],
    "load": [
        *["path", "like", "*", "mmap", "to", "verify", "strict", "cast"],
        *["select", "rename", "missing", "extra", "alias", "nest", "transpose", "recipe"],
        *["mesh", "rules", "shardings", "migrations", "progress", "format", "prefix", "max_bytes"],
    ],
    "convert": [
        *["source", "destination", "*", "select", "rename", "transpose", "recipe", "cast"],
        *["lossy"],
        *["format", "compression", "metadata", "prefix"],
        *["to_prefix", "overwrite", "max_shard_bytes", "files_from", "max_bytes", "scratch"],
        *["progress", "executor", "part", "journal"],
    ],
    "combine": [
        *["destination", "weights", "*", "select", "rename", "cast", "accumulate", "others"],
        *["prefix", "format", "compression", "max_shard_bytes", "overwrite", "progress"],
    ],
    "merge_lora": [
        *["destination", "base", "adapter", "*", "target", "down", "up", "alpha", "cast"],
        *["accumulate", "prefix", "format", "max_shard_bytes", "overwrite", "progress"],
    ],
    "open_combined": [
        *["weights", "*", "select", "rename", "cast", "accumulate", "others", "prefix"],
    ],
    "copy": [
        *["source", "destination", "*", "verify", "progress", "executor", "part", "journal"],
    ],
    "diff": [
        *["a", "b", "*", "select", "rename", "recipe", "prefix", "strict", "values", "progress"],
        *["executor", "part", "journal"],
    ],
    "open": ["path", "*", "format", "prefix", "max_bytes", "scratch", "recipe"],
    "tree_serialize_leaves": [
        *["checkpoint_dir", "pytree", "manager", "*"],
        *["prefix", "commit_callback", "write_index"],
    ],
    "tree_deserialize_leaves": [
        *["checkpoint_dir", "mesh", "manager", "*"],
        *["prefix", "partition_rules", "shardings", "callback", "chunk_size", "like"],
    ],
    "detect": ["path"],
    "verify": [
        *["path", "*", "sample", "seed", "resume", "progress", "format", "max_bytes"],
        *["executor", "part", "journal"],
    ],
    "gc": ["path", "*", "dry_run"],
    "storage_options": [
        *["url", "*", "store", "profile", "stall_seconds", "client_options", "config"],
    ],
    "CheckpointManager": [
        *["root", "*", "save", "keep", "background", "on_save", "rewrite_every"],
        *["preemption_seconds", "page_cache", "orbax", "staging_bytes", "device_copies"],
        *[
            "shared",
            "replicas",
            "failure_domain",
            "replica_bytes",
            "mirror",
            "on_problem",
            "timeout_seconds",
            "progress",
        ],
    ],
    "Mirror": ["root", "every", "keep", "wait_seconds"],
    "to_bytes": ["target"],
    "from_bytes": ["target", "encoded_bytes"],
    "to_state_dict": ["target"],
    "msgpack_serialize": ["pytree", "in_place"],
    "msgpack_restore": ["encoded_pytree"],
    "register_serialization_state": ["ty", "ty_to_state_dict", "ty_from_state_dict", "override"],
}


def test_every_public_module_is_pinned() -> None:
    packages = {"cordwood.compat", "cordwood.compat.eformer", "cordwood.compat.orbax.experimental"}
    assert {*NAMESPACES, *PEER_MODULES} == PUBLIC_MODULES - packages


@pytest.mark.parametrize("module", [*NAMESPACES, *PEER_MODULES])
def test_the_documentation_lists_every_public_module(module: str) -> None:
    assert f"`{module}`" in (ROOT / "docs" / "compatibility.md").read_text()


@pytest.mark.parametrize("module", NAMESPACES)
def test_each_public_module_has_its_names(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(NAMESPACES[module].split())


def test_cordwood_has_few_names() -> None:
    assert len(cordwood.__all__) <= MAX_NAMES


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_name_is_documented(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    if name not in ("MAX_CHUNK_SIZE", "PLACEHOLDER"):
        assert inspect.ismodule(value) or value.__module__.startswith("cordwood.")
        assert value.__doc__, f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", ["cordwood", "cordwood.results", "cordwood.state_dict"])
def test_type_checkers_and_python_import_the_same_names(module: str) -> None:
    """The imports under TYPE_CHECKING are those that the table of lazy names describes."""
    source = importlib.import_module(module)
    tree = ast.parse(inspect.getsource(source))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    submodules = dict.fromkeys(getattr(source, "_SUBMODULES", ()), module)
    assert imports == {**source._MODULE_OF, **submodules}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in MOVED.items() for name in names],
)
def test_an_old_name_warns_and_says_the_new_place(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"cordwood\.{name} is now {module}\.{name};"):
        value = getattr(cordwood, name)
    assert value is getattr(importlib.import_module(module), name)
    assert name in NAMESPACES[module].split()


def test_the_warning_names_the_line_of_the_import() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now cordwood\.errors\.") as caught:
        from cordwood import MismatchError
    assert MismatchError is errors.MismatchError
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_public_functions_have_their_parameters(name: str) -> None:
    parameters: list[str] = []
    for parameter in inspect.signature(getattr(cordwood, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(parameter.name)
    assert parameters == SIGNATURES[name]


def test_every_error_is_a_cordwood_error_and_a_builtin_one() -> None:
    names = [name for name in errors.__all__ if name != "CordwoodError"]
    assert len(names) >= 8
    for name in names:
        error = getattr(errors, name)
        assert issubclass(error, cordwood.CordwoodError)
        assert any(base.__module__ == "builtins" for base in error.__mro__[1:-3]), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cordwood' has no attribute 'save_all'"):
        cordwood.save_all  # noqa: B018


def test_dir_lists_what_there_is() -> None:
    submodules = {module.split(".")[1] for module in PUBLIC_MODULES - {"cordwood"}}
    names = {name for name in dir(cordwood) if not name.startswith("_")}
    assert names == {*NAMESPACES["cordwood"].split(), *submodules}


def test_compat_flax_has_every_public_name_of_flax() -> None:
    import flax.serialization

    import cordwood.compat.flax as ours

    theirs = {
        name
        for name, value in vars(flax.serialization).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == "flax.serialization"
    }
    assert theirs, "flax.serialization has no public functions: has it moved?"
    assert theirs <= set(dir(ours))
    assert hasattr(ours, "MAX_CHUNK_SIZE")


def test_compat_eformer_has_every_public_name_of_eformer() -> None:
    import eformer.pytree._serialization as theirs

    from cordwood.compat.eformer import pytree as ours

    module = "eformer.pytree._serialization"
    names = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    }
    assert {"save_to_file", "load_from_file"} <= names
    assert names <= set(dir(ours))
