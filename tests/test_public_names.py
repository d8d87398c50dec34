"""The public names: adding or removing one is a decision, made here and in CHANGELOG.md."""

from __future__ import annotations

import inspect

import pytest

import cordwood

PUBLIC = [
    "AtSteps",
    "Checkpoint",
    "CheckpointManager",
    "Conversion",
    "CordwoodError",
    "CorruptionError",
    "Detected",
    "Diff",
    "DictKey",
    "EverySeconds",
    "EveryStep",
    "EverySteps",
    "FormatError",
    "IncompleteCheckpointError",
    "KeepAll",
    "KeepAt",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepPolicy",
    "KeepWithin",
    "LeafDiff",
    "LimitError",
    "LossError",
    "MismatchError",
    "Moment",
    "OnPreemption",
    "NotACheckpointError",
    "PendingSave",
    "PendingSaveError",
    "PlannedStep",
    "PrefixError",
    "ProcessError",
    "Progress",
    "Restored",
    "RetentionPlan",
    "SavePolicy",
    "SaveReport",
    "SavedStep",
    "Stateful",
    "StepError",
    "StepReader",
    "StorageError",
    "StoredLeaf",
    "TruncatedError",
    "UnsupportedFormatError",
    "UnsupportedLeafError",
    "Verification",
    "WhenIdle",
    "compress_bytes",
    "convert",
    "current_path",
    "decompress_bytes",
    "detect",
    "diff",
    "format_path",
    "from_bytes",
    "from_compressed_bytes",
    "from_state_dict",
    "gc",
    "get_serialization_info",
    "is_array_like",
    "is_serializable",
    "join_key",
    "leaf_key_paths",
    "load",
    "load_from_file",
    "match_partition_rules",
    "msgpack_restore",
    "msgpack_serialize",
    "open",
    "parse_path",
    "register_serialization_state",
    "release_memory",
    "save",
    "save_async",
    "save_to_file",
    "to_buffers",
    "to_bytes",
    "to_compressed_bytes",
    "to_state_dict",
    "tree_deserialize_leaves",
    "tree_serialize_leaves",
    "validate_serializable",
    "verify",
]

SIGNATURES = {
    "save": [
        *["path", "tree", "*", "format", "layout", "compression", "prefix"],
        *["max_shard_bytes", "metadata", "progress", "timeout_seconds"],
    ],
    "save_async": [
        *["path", "tree", "*", "format", "layout", "compression", "prefix", "metadata"],
        "timeout_seconds",
    ],
    "load": [
        *["path", "like", "*", "mmap", "to", "verify", "strict", "cast"],
        *["select", "rename", "missing", "extra", "alias", "nest", "transpose"],
        *["mesh", "rules", "shardings", "progress", "format", "prefix", "max_bytes"],
    ],
    "convert": [
        *["source", "destination", "*", "select", "rename", "transpose", "cast", "lossy"],
        *["format", "layout", "compression", "metadata", "prefix"],
        *["to_prefix", "overwrite", "max_shard_bytes", "max_bytes", "scratch", "progress"],
    ],
    "diff": ["a", "b", "*", "select", "rename", "strict", "values"],
    "open": ["path", "*", "format", "prefix", "max_bytes", "scratch"],
    "tree_serialize_leaves": [
        *["checkpoint_dir", "pytree", "manager", "*"],
        *["prefix", "commit_callback", "write_index"],
    ],
    "tree_deserialize_leaves": [
        *["checkpoint_dir", "mesh", "manager", "*"],
        *["prefix", "partition_rules", "shardings", "callback", "chunk_size", "like"],
    ],
    "detect": ["path"],
    "verify": ["path", "*", "sample", "seed", "resume", "progress", "format", "max_bytes"],
    "gc": ["path", "*", "dry_run"],
    "CheckpointManager": [
        *["root", "*", "save", "keep", "background", "on_save", "rewrite_every"],
        *["preemption_seconds", "timeout_seconds"],
    ],
    "to_bytes": ["target"],
    "from_bytes": ["target", "encoded_bytes"],
    "to_state_dict": ["target"],
    "msgpack_serialize": ["pytree", "in_place"],
    "msgpack_restore": ["encoded_pytree"],
    "register_serialization_state": ["ty", "ty_to_state_dict", "ty_from_state_dict", "override"],
}


def test_the_public_list() -> None:
    assert sorted(cordwood.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there_and_documented(name: str) -> None:
    value = getattr(cordwood, name)
    assert value.__module__.startswith("cordwood.")
    assert value.__doc__, f"cordwood.{name} has no docstring"


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signatures(name: str) -> None:
    found: list[str] = []
    for parameter in inspect.signature(getattr(cordwood, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(parameter.name)
    assert found == SIGNATURES[name]


def test_every_error_is_a_cordwood_error_and_a_builtin_one() -> None:
    errors = [name for name in PUBLIC if name.endswith("Error") and name != "CordwoodError"]
    assert len(errors) >= 8
    for name in errors:
        error = getattr(cordwood, name)
        assert issubclass(error, cordwood.CordwoodError)
        assert any(base.__module__ == "builtins" for base in error.__mro__[1:-3]), name


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'cordwood' has no attribute 'save_all'"):
        cordwood.save_all  # noqa: B018


def test_dir_lists_what_there_is() -> None:
    assert {*PUBLIC, "compat", "msgpack", "testing"} <= set(dir(cordwood))


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

    own = "eformer.pytree._serialization"
    wanted = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == own
    }
    assert {"save_to_file", "load_from_file"} <= wanted
    assert wanted <= set(dir(ours))
