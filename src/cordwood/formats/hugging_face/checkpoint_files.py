"""The files that belong to a checkpoint of the Hugging Face hub, or of a Trainer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.hugging_face.format import SHARD
from cordwood.formats.hugging_face.weight_files import weight_files_at
from cordwood.formats.hugging_face.weight_map import files_in_index
from cordwood.storage.locations import Location

_FILE = re.compile(
    r"model\.safetensors|[^/]+\.safetensors\.index\.json|\.gitattributes"
    r"|(?:config|generation_config|preprocessor_config|processor_config|tokenizer|tokenizer_config"
    r"|special_tokens_map|added_tokens|vocab|chat_template|trainer_state)\.json"
    r"|tokenizer\.model|vocab\.txt|merges\.txt|chat_template\.jinja|training_args\.bin"
    r"|(?:optimizer|scheduler|scaler)\.(?:pt|bin)|rng_state(?:_\d+)?\.pth"
)


def foreign_files(location: Location, names: Sequence[str]) -> Collection[str]:
    """Return the files in a checkpoint that are no part of it, by their names and its index."""
    weights = {*_shards(names)}
    with suppress(CordwoodError, OSError):  # damaged: then the names alone decide
        weights |= {*files_in_index(weight_files_at(location))}
    return {name for name in names if not _FILE.fullmatch(name)} - weights


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
