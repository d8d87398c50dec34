"""The golden files of msgpack, and their generator: python -m tests.golden.msgpack_files.

- flax-0.12.8.msgpack: TREE, by flax.serialization.to_bytes; flax-0.12.8-chunked.msgpack: the same
  with MAX_CHUNK_SIZE at 64 bytes, so that larger arrays are cut.
- orbax-0.12.8.msgpack: TUPLES, by orbax.checkpoint.msgpack_utils, which writes the aggregate files
  of older checkpoints.
- eformer-0.0.101.msgpack-records: RECORDS, as CheckpointManager.save_state_to_gcs_msgpack sends
  them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent
WHOLE, CHUNKED = FOLDER / "flax-0.12.8.msgpack", FOLDER / "flax-0.12.8-chunked.msgpack"
AGGREGATE = FOLDER / "orbax-0.12.8.msgpack"
STREAM = FOLDER / "eformer-0.0.101.msgpack-records"

CHUNK_BYTES = 64
ARRAYS: dict[str, Any] = {
    "kernel": np.arange(60, dtype=np.float32).reshape(6, 10),
    "bias": np.arange(3).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 3), np.int8),
}
TREE: dict[str, Any] = {
    "params": ARRAYS,
    "layers": [np.arange(4, dtype=np.uint16), (np.ones((2, 2), np.complex64),)],
    "half": np.float16(0.5),
    "step": 7,
    "rate": 0.1,
    "done": False,
    "z": 1 - 2j,
    "name": "é",
    "none": None,
    "nothing": {},
}
TUPLES: dict[str, Any] = {"layers": (ARRAYS["bias"], (), [2, (0.5,)]), "kernel": ARRAYS["kernel"]}
RECORDS: dict[str, Any] = {"params": ARRAYS, "layers": {"0": np.arange(4, dtype=np.uint16)}}


class _Blobs:
    """Keeps what is sent to a bucket."""

    def __init__(self) -> None:
        self.data = b""

    def bucket(self, name: str) -> Any:
        return self

    def blob(self, name: str) -> Any:
        return self

    def upload_from_file(self, file: io.BytesIO, content_type: str) -> None:
        self.data += file.read()


def main() -> None:
    import flax.serialization
    from eformer.serialization.base_manager import CheckpointManager
    from orbax.checkpoint import msgpack_utils

    WHOLE.write_bytes(flax.serialization.to_bytes(TREE))
    with mock.patch.object(flax.serialization, "MAX_CHUNK_SIZE", CHUNK_BYTES):
        CHUNKED.write_bytes(flax.serialization.to_bytes(TREE))
    AGGREGATE.write_bytes(msgpack_utils.msgpack_serialize(TUPLES))
    manager: Any = CheckpointManager.__new__(CheckpointManager)
    manager.gcs_client = _Blobs()
    manager.save_state_to_gcs_msgpack(RECORDS, "gs://bucket/name")
    STREAM.write_bytes(manager.gcs_client.data)


if __name__ == "__main__":
    main()
