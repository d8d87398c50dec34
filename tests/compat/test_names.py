"""Switching by one import: the names, the order of their arguments, the chunk size."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import cordwood.msgpack
from cordwood.compat import flax as flax_face
from cordwood.compat.eformer import pytree as eformer_face
from cordwood.compat.eformer import serialization as tree_face

PAIRS = [
    ("flax.serialization", "cordwood.compat.flax"),
    ("eformer.pytree._serialization", "cordwood.compat.eformer.pytree"),
    ("eformer.serialization.serialization", "cordwood.compat.eformer.serialization"),
]
# What a face has not: the time-out of a manager that cordwood does not make; and what it has
# beside: eFormer's rules live in another module, which that one imports.
LACKS = {"cordwood.compat.eformer.serialization": {"GLOBAL_CHECKPOINT_TIMEOUT"}}
HAS_BESIDE = {"cordwood.compat.eformer.serialization": {"match_partition_rules"}}
FACES = [pytest.param(flax_face, id="flax"), pytest.param(eformer_face, id="eformer")]


def public_names(module: Any) -> set[str]:
    """Return the names that a module defines itself, without its imports."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or name.isupper())
    }


@pytest.mark.parametrize(("peer", "face"), PAIRS)
def test_a_face_has_the_public_names_of_its_peer(peer: str, face: str) -> None:
    theirs, ours = importlib.import_module(peer), importlib.import_module(face)
    expected = public_names(theirs) - LACKS.get(face, set()) | HAS_BESIDE.get(face, set())
    assert set(ours.__all__) == expected
    assert all(hasattr(ours, name) for name in ours.__all__)


SIGNATURES = [
    (peer, face, name)
    for peer, face in PAIRS
    for name in importlib.import_module(face).__all__
    if name != "MAX_CHUNK_SIZE"
]


@pytest.mark.parametrize(("peer", "face", "name"), SIGNATURES)
def test_arguments_are_in_the_same_order(peer: str, face: str, name: str) -> None:
    theirs = inspect.signature(getattr(importlib.import_module(peer), name))
    ours = inspect.signature(getattr(importlib.import_module(face), name))
    assert _arguments(ours, keywords=False) == _arguments(theirs, keywords=False)
    assert set(_arguments(theirs, keywords=True)) <= set(_arguments(ours, keywords=True))


def _arguments(signature: inspect.Signature, *, keywords: bool) -> list[tuple[str, Any]]:
    return [
        (parameter.name, parameter.default)
        for parameter in signature.parameters.values()
        if (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == keywords
    ]


@pytest.mark.parametrize("face", [*FACES, tree_face])
def test_faces_hold_the_functions_of_cordwood(face: Any) -> None:
    for name in face.__all__:
        for module in (cordwood, cordwood.msgpack, cordwood.state_dict):
            if name in module.__all__ and name != "MAX_CHUNK_SIZE":
                assert getattr(face, name) is getattr(module, name)


@pytest.mark.parametrize("face", FACES)
def test_the_chunk_size_can_be_assigned(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert face.MAX_CHUNK_SIZE == cordwood.msgpack.MAX_CHUNK_SIZE == 2**30
    tree = {"w": np.arange(6, dtype=np.float32)}
    whole = face.to_bytes(tree)
    monkeypatch.setattr(face, "MAX_CHUNK_SIZE", 16)
    assert cordwood.msgpack.MAX_CHUNK_SIZE == 16
    chunked = face.to_bytes(tree)
    assert b"__msgpack_chunked_array__" in chunked
    assert b"__msgpack_chunked_array__" not in whole
    for data in (whole, chunked):
        np.testing.assert_array_equal(face.from_bytes(tree, data)["w"], tree["w"])
    monkeypatch.undo()
    assert face.MAX_CHUNK_SIZE == cordwood.msgpack.MAX_CHUNK_SIZE == 2**30
