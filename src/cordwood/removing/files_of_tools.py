"""The decision which files belong to a checkpoint of a tool: by their names, and nothing else.

`cordwood rm` removes a checkpoint only if every file in it belongs to it. So the tables below may
lack a name, which is then refused, but have none that is not the tool's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from cordwood.formats.hugging_face.format import SHARD
from cordwood.formats.packs.file_names import SAVE_ID
from cordwood.formats.packs.packs_storage import RULES
from cordwood.storage.entry_content import split_content
from cordwood.storage.paths import POOL, temporary_prefix

_Patterns: TypeAlias = re.Pattern[str]

_TREE = (
    r"(?:_METADATA|_sharding|_strings\.json|checkpoint|commit_success\.txt|manifest\.ocdbt"
    r"|d/[0-9a-f]+|ocdbt\.process_\d+/(?:manifest\.ocdbt|d/[0-9a-f]+)|array_metadatas/process_\d+)"
)
_ITEM = r"[^/]+"
_ORBAX = re.compile(
    rf"_CHECKPOINT_METADATA|(?:{_ITEM}/)?{_TREE}|{_ITEM}/(?:metadata|process_\d+-of-\d+\.\w+)"
    rf"|metrics/metrics|descriptor/descriptor\.pbtxt|{_ITEM}/jax_random_key/{_TREE}"
    rf"|{_ITEM}/jax_random_key_metadata/(?:metadata|commit_success\.txt)"
)
_EFORMER = re.compile(
    r"tensorstore_index\.json|metadata\.json|checkpoint_metadata\.json|[^/]+_structure\.json"
)
_HUB = re.compile(
    r"model\.safetensors|[^/]+\.safetensors\.index\.json|\.gitattributes"
    r"|(?:config|generation_config|preprocessor_config|processor_config|tokenizer|tokenizer_config"
    r"|special_tokens_map|added_tokens|vocab|chat_template|trainer_state)\.json"
    r"|tokenizer\.model|vocab\.txt|merges\.txt|chat_template\.jinja|training_args\.bin"
    r"|(?:optimizer|scheduler|scaler)\.(?:pt|bin)|rng_state(?:_\d+)?\.pth"
)
_NONE = re.compile(r"(?!)")

# The files beside zarr arrays, by the name of the format as `detect` returns it.
_TABLES: Mapping[str, _Patterns] = {
    "orbax": _ORBAX,
    "zarr": _EFORMER,
    "zarr-tree": _NONE,
    "safetensors-shards": _HUB,
}
_WITH_ARRAYS = ("orbax", "zarr", "zarr-tree")
_ARRAY_METADATA = (".zarray", "zarr.json")
_METADATA = {*_ARRAY_METADATA, ".zattrs", ".zgroup", ".zmetadata"}
_CHUNK = re.compile(r"\d+(?:[./]\d+)*|c(?:[./]\d+)*")

# What a run has beside its steps: a lock, what was being removed or written, the pool of a store.
_HIDDEN = re.compile(
    r"\.[^/]+\.cordwood-[0-9a-f]{16}\.(deleted|damaged|stage)(?:/(.*))?", re.DOTALL
)
_LOCK = f"{temporary_prefix('steps')}lock"
_POOLED = re.compile(rf"{SAVE_ID.pattern}/(?:cells-\d{{1,7}}\.json|\.removed-[0-9a-f]{{16}})")


def foreign_files(
    format: str, names: Iterable[str], *, in_index: Collection[str] = ()
) -> Sequence[str] | None:
    """Return the files in a checkpoint that are no part of it, sorted.

    Args:
        format: the format of the checkpoint, as `detect` returns it.
        names: the paths of all its files, relative to it.
        in_index: names of files that its index refers to.

    Returns None for a format whose files are not known by name.

    >>> foreign_files("orbax", ["_METADATA", "w/.zarray", "w/0.0", "w/notes", "eval/0"])
    ['eval/0', 'w/notes']
    """
    names = list(names)
    if format == "packs":
        return _foreign_in_packs(names, RULES.index_name in names)
    if format not in _TABLES:
        return None
    belongs = _TABLES[format].fullmatch
    in_array = _in_arrays(names) if format in _WITH_ARRAYS else lambda _: False
    weights = {*in_index, *(_shards(names) if format == "safetensors-shards" else ())}
    return sorted(
        [name for name in names if not (name in weights or belongs(name) or in_array(name))]
    )


def _shards(names: Sequence[str]) -> Collection[str]:
    """Return the files of the set `model-*-of-N`, or of another stem if there is but one set."""
    sets: dict[tuple[str, str], list[str]] = {}
    for name in names:
        shard = SHARD.fullmatch(name)
        if shard is not None:
            sets.setdefault((shard[1], shard[3]), []).append(name)
    if len(sets) > 1 or any(name.endswith(".safetensors.index.json") for name in names):
        sets = {key: shards for key, shards in sets.items() if key[0] == "model"}
    return [name for shards in sets.values() for name in shards] if len(sets) == 1 else []


def _foreign_in_packs(names: Sequence[str], has_own_sidecars: bool) -> Sequence[str]:
    files = [name for name in names if "/" not in name]
    others = [name for name in names if "/" in name]
    return split_content(files, others, RULES, has_own_sidecars=has_own_sidecars).foreign


def _in_arrays(names: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tells the metadata and the chunks of zarr arrays by their paths."""
    arrays = {name.rpartition("/")[0] for name in names if _last(name) in _ARRAY_METADATA}

    def in_array(name: str) -> bool:
        if _last(name) in _METADATA:
            return True
        parts = name.split("/")
        return any(
            "/".join(parts[:depth]) in arrays and _CHUNK.fullmatch("/".join(parts[depth:]))
            for depth in range(len(parts))
        )

    return in_array


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def belongs_to_run(name: str) -> bool:
    """Return True for a file in the root of a run that is cordwood's, beside those of its steps."""
    if name == _LOCK:
        return True
    hidden = _HIDDEN.fullmatch(name)
    if hidden is not None:  # what others had put into a step that was being deleted is theirs
        return hidden[1] == "stage" or not hidden[2] or not _foreign_in_packs([hidden[2]], True)
    folder, _, inner = name.partition("/")
    if folder != POOL:
        return False
    return (
        inner == "steps.json"
        or _POOLED.fullmatch(inner) is not None
        or RULES.is_data_file(f"../{name}")
    )
