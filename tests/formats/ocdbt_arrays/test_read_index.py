"""Databases of zarr arrays: Levanter's steps, jax's serialization, and what is wrong with one.

tests/formats/orbax/test_ocdbt.py has hostile databases.
"""

from __future__ import annotations

import base64
import collections
import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import CordwoodError, CorruptionError, FormatError
from cordwood.formats.ocdbt_arrays.pytreedef import parse_tree_file
from cordwood.index import LEAF, Node
from tests.foreign_files.make.__main__ import GOLDEN

FOLDER = GOLDEN / "jax-0.10.2"
Pair = collections.namedtuple("Pair", "first second")


@pytest.fixture
def pytree(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / "pytree", tmp_path / "pytree"))


def edit(path: Path, **members: Any) -> None:
    file = path / "pytreedef.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **members}))


def test_the_structure_of_jaxs_own_serialization() -> None:
    structure, arrays = parse_tree_file((FOLDER / "pytree" / "pytreedef.json").read_bytes())
    assert structure == (
        Node("dict", 3, ("empty", "layers", "pair")),
        Node("dict"),
        Node("list", 2),
        LEAF,
        Node("tuple", 2),
        LEAF,
        Node("none"),
        Node("namedtuple", 2, ("first", "second"), "Pair"),
        LEAF,
        Node("dict", 1, ("zeros",)),
        LEAF,
    )
    assert arrays == {
        0: ("float32", (2, 3)),
        1: ("bfloat16", (2,)),
        3: ("int32", ()),
        4: ("float32", (3, 2)),
    }


def test_any_type_comes_back_by_like() -> None:
    like: Any = {
        "layers": [jnp.zeros((2, 3)), (jnp.zeros(2, jnp.bfloat16), None)],
        "pair": Pair(jnp.int32(0), {"zeros": jnp.ones((3, 2))}),
        "empty": {},
    }
    tree = cordwood.load(FOLDER / "pytree", like=like)
    assert str(jax.tree.structure(tree)) == str(jax.tree.structure(like))
    assert isinstance(tree["pair"], Pair)
    assert (tree["layers"][0] == jnp.arange(6).reshape(2, 3)).all()
    assert not tree["pair"].second["zeros"].any()


def test_a_step_of_levanter() -> None:
    step = FOLDER / "levanter"
    tree = cordwood.load(step)
    assert list(tree) == ["model", "training_state"]
    assert tree["training_state"]["step"] == 7
    assert cordwood.detect(step).format == "ocdbt"
    assert cordwood.load(step, select="model/embed/**") == {"model": {"embed": {"weight": EMBED}}}


class _Embed:
    def __eq__(self, other: object) -> bool:
        return bool((np.asarray(other) == np.arange(12).reshape(4, 3)).all())


EMBED = _Embed()


def test_a_part_of_a_checkpoint_of_orbax_is_not_taken_for_all(tmp_path: Path) -> None:
    """The database of one process has a part of the arrays only."""
    source = GOLDEN / "orbax-0.12.8" / "sharded"
    (part,) = source.glob("ocdbt.process_*")
    shutil.copytree(part, tmp_path / part.name)
    with pytest.raises(CordwoodError, match="is not a checkpoint"):
        cordwood.load(tmp_path / part.name)


def test_an_array_of_another_type_or_none(pytree: Path) -> None:
    types = json.loads((pytree / "pytreedef.json").read_text())["__jax_leaf_ids"]
    edit(pytree, __jax_leaf_ids=["Array(float32[3, 2])", *types[1:]])
    with pytest.raises(FormatError, match=r"the array 0 should be float32\[3, 2\], and is"):
        cordwood.load(pytree)
    edit(pytree, __jax_leaf_ids=[*types[:2], types[0], *types[3:]])
    with pytest.raises(CorruptionError, match=r"pytreedef.json: the array 2 is missing"):
        cordwood.load(pytree)
    edit(pytree, __jax_leaf_ids=types[1:])
    with pytest.raises(FormatError, match="more leaves than __jax_leaf_ids"):
        cordwood.load(pytree)
    edit(pytree, __jax_leaf_ids=[*types, types[0]])
    with pytest.raises(FormatError, match="5 leaves, but 6 in __jax_leaf_ids"):
        cordwood.load(pytree)
    edit(pytree, __jax_leaf_ids=["object", *types[1:]])
    with pytest.raises(FormatError, match="expected an array or null, found 'object'"):
        cordwood.load(pytree)


def test_every_byte_and_cut_of_the_structure(pytree: Path) -> None:
    data = (pytree / "pytreedef.json").read_bytes()
    members = json.loads(data)
    tables = base64.b64decode(members["__jax_pytreedef_repr"])
    changed = [tables[:stop] for stop in range(len(tables))]
    for at in range(len(tables)):
        for value in (0, 1, 0x7F, 0xFF):
            changed.append(tables[:at] + bytes((value,)) + tables[at + 1 :])
    for each in changed:
        text = base64.b64encode(each).decode()
        encoded = json.dumps({**members, "__jax_pytreedef_repr": text}).encode()
        with suppress(FormatError):
            structure, arrays = parse_tree_file(encoded)
            assert structure.count(LEAF) == len(arrays)


def test_tables_that_are_shared_without_end() -> None:
    """Thirty levels, each with twice the table below it, would be a billion nodes."""
    tables = _shared_tables(levels=30)
    text = base64.b64encode(tables).decode()
    members = {"__jax_pytreedef_repr": text, "__jax_leaf_ids": []}
    with pytest.raises(FormatError, match="or has more nodes than bytes"):
        parse_tree_file(json.dumps(members).encode())


def _shared_tables(*, levels: int) -> bytes:
    """Return a FlatBuffer of lists of two, whose elements are one and the same table."""
    # The layout of each table: its size, and where its kind and its children are.
    data = struct.pack("<IHHHH", 12, 8, 12, 4, 8)
    for _ in range(levels):
        data += struct.pack("<iiI", len(data) - 4, 3, 4)  # back to the layout; a list; a vector
        data += struct.pack("<III", 2, 8, 4)  # of two, both the next table
    return data + struct.pack("<iiII", len(data) - 4, 3, 4, 0)
