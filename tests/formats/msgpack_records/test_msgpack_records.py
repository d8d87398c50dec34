"""Streams of msgpack records, as EasyLM and eFormer's CheckpointManager write them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import flax.serialization
import flax.traverse_util
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import cordwood
from cordwood.errors import LimitError, MismatchError, TruncatedError
from cordwood.formats.flax_msgpack.read_records import read_index
from cordwood.io.memory_file import MemoryFile

TREE: dict[str, Any] = {
    "params": {
        "embed": jnp.arange(48.0).reshape(8, 6),
        "layers": [jnp.ones(3, jnp.bfloat16), jnp.zeros((2, 0))],
    },
    "step": jnp.int32(7),
}


def record(keys: Any, value: bytes) -> bytes:
    data: bytes = msgpack.packb((keys, value))
    return data


def stream(tree: Any) -> bytes:
    """Return the stream that EasyLM writes."""
    flat = flax.traverse_util.flatten_dict(flax.serialization.to_state_dict(tree))
    return b"".join(record(k, flax.serialization.to_bytes(v)) for k, v in flat.items())


@pytest.mark.parametrize("name", ["streaming_params", "x.msgpack"])
def test_a_stream_of_records_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(stream(TREE))
    assert cordwood.detect(path).format == "msgpack-records"
    for mmap in (False, True):
        result = cordwood.load(path, mmap=mmap)
        assert list(result) == ["params", "step"]
        assert list(result["params"]["layers"]) == ["0", "1"]
        np.testing.assert_array_equal(result["params"]["embed"], TREE["params"]["embed"])
        assert result["params"]["layers"]["0"].dtype == jnp.bfloat16
    like = cordwood.load(path, like=TREE)
    jax.tree.map(np.testing.assert_array_equal, like, TREE)
    assert type(like["params"]["layers"]) is list
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = cordwood.load(path, mesh=mesh, rules=[("embed", jax.P("x")), ("", jax.P())])
    assert placed["params"]["embed"].sharding.spec == jax.P("x")
    with cordwood.open(path) as checkpoint:
        part = checkpoint["params/embed"][2:5, 1]
    np.testing.assert_array_equal(part, TREE["params"]["embed"][2:5, 1])
    assert cordwood.verify(path).unverified_bytes == path.stat().st_size
    with pytest.raises(MismatchError, match="step: expected float32"):
        cordwood.load(path, like={**TREE, "step": jnp.ones(1)})


def test_records_that_eformer_writes_are_read(tmp_path: Path) -> None:
    from eformer.serialization.base_manager import CheckpointManager

    kept = io.BytesIO()

    class Bucket:
        def bucket(self, name: str) -> Any:
            return self

        def blob(self, name: str) -> Any:
            return self

        def upload_from_file(self, data: Any, content_type: str) -> None:
            kept.write(data.read())

    manager: Any = CheckpointManager.__new__(CheckpointManager)
    manager.gcs_client = Bucket()
    tree = {"a": {"w": jnp.arange(6.0)}, "b": jnp.ones((2, 2))}
    manager.save_state_to_gcs_msgpack(tree, "gs://bucket/name")
    path = tmp_path / "checkpoint"
    path.write_bytes(kept.getvalue())
    result = cordwood.load(path)
    jax.tree.map(np.testing.assert_array_equal, result, tree)


def test_flax_files_are_not_taken_for_streams(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    path.write_bytes(flax.serialization.msgpack_serialize([["a"], b"value"]))
    assert cordwood.load(path) == [["a"], b"value"]


ARRAY = flax.serialization.to_bytes(np.ones(2, np.float32))


def test_the_error_of_a_cut_stream_says_so(tmp_path: Path) -> None:
    """And not as a file of Flax's with something after it."""
    whole = stream(TREE)
    for name in ("x.msgpack", "x"):
        path = tmp_path / name
        for size in (len(whole) - 1, len(whole) // 2, 5, 12):
            path.write_bytes(whole[:size])
            with pytest.raises(TruncatedError, match=r"byte [0-9]+: truncated"):
                cordwood.load(path)


def test_limits_hold_for_all_records_together() -> None:
    """Each is far below them."""
    value = flax.serialization.msgpack_serialize({str(i): i for i in range(10_000)})
    deep = [record([str(i), *"k" * 63], value) for i in range(20)]
    with pytest.raises(LimitError, match=r"bad: byte [0-9]+: more than [0-9]+ keys in all records"):
        read_index(MemoryFile(b"".join(deep), "bad"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.formats.flax_msgpack.read_records.MAX_NODES", 1000)
        flat = b"".join(record([str(i)], ARRAY) for i in range(600))
        with pytest.raises(LimitError, match="more than 1000 values in all records"):
            read_index(MemoryFile(flat, "bad"))
