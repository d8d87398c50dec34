"""Blosc: the same bytes as TensorStore's, nothing else in the process changed, damage refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorstore
from numcodecs.blosc import Blosc

from cordwood import dtypes
from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.index import Codec
from cordwood.io.chunk_codecs import chunk_encoder, decode_chunk
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.load_plan import EncodedChunk, Scatter
from tests.children import run_python

_SETTINGS = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0}


def chunk_of(size: int) -> EncodedChunk:
    return EncodedChunk(0, 0, 0, Codec("blosc"), "uint8", Scatter((size,), 1, ()))


def decode(data: bytes, size: int) -> bytes:
    return bytes(decode_chunk(chunk_of(size), memoryview(data), ScratchBuffer(), name="c"))


def by_tensorstore(array: np.ndarray, compressor: Any) -> bytes:
    context = tensorstore.Context()
    metadata = {"compressor": compressor, "shape": array.shape, "chunks": array.shape}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    store = tensorstore.open(spec, dtype=array.dtype, create=True, context=context).result()
    store.write(array).result()
    data: bytes = tensorstore.KvStore.open("memory://", context=context).result()["0"]
    return data


# As `save` stores them: elements that TensorStore has no type for are bytes.
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "float16", "bfloat16", "float32", "float64", "complex128"]
)
@pytest.mark.parametrize("size", [1, 1000, 300_000, 3_000_000])
def test_the_chunks_are_those_of_tensorstore(dtype: str, size: int) -> None:
    """Compressible and incompressible elements, also of many blocks."""
    random = np.random.default_rng(0)
    width = dtypes.itemsize(dtype)
    for raw in (random.integers(0, 3, size * width, np.uint8), random.bytes(size * width)):
        array = np.frombuffer(raw, np.uint8)
        array = array & 1 == 1 if dtype == "bool" else array.view(dtypes.to_numpy(dtype))
        with np.errstate(invalid="ignore"):
            expected = by_tensorstore(array, _SETTINGS)
        data = chunk_encoder("blosc")(array)
        assert data == expected
        assert decode(data, array.nbytes) == array.tobytes()


def test_each_thread_writes_the_same_bytes() -> None:
    """Also the main thread, where numcodecs alone would order the blocks by time."""
    assert threading.current_thread() is threading.main_thread()
    array = np.cumsum(np.random.default_rng(0).integers(0, 3, 4 << 20)).astype(np.float32)
    encode = chunk_encoder("blosc")
    data = {encode(array) for _ in range(5)}
    with ThreadPoolExecutor(4) as executor:
        data |= set(executor.map(encode, [array] * 8))
        assert len(data) == 1
        (stored,) = data
        decoded = executor.map(decode, [stored] * 8, [array.nbytes] * 8)
        assert all(each == array.tobytes() for each in decoded)


def test_the_rest_of_the_process_is_as_before() -> None:
    """The start method of processes can still be chosen, and no lock or process stays."""
    child = """
        import multiprocessing, sys
        import numpy as np
        from cordwood.index import Codec
        from cordwood.io.memory.buffers import ScratchBuffer
        from cordwood.io.chunk_codecs import chunk_encoder, decode_chunk
        from cordwood.plan.load_plan import EncodedChunk, Scatter

        assert "numcodecs" not in sys.modules
        data = chunk_encoder("zstd")(np.zeros(9000, np.uint8))
        assert "numcodecs" not in sys.modules
        data = chunk_encoder("blosc")(np.zeros(9000, np.uint8))
        chunk = EncodedChunk(0, 0, 0, Codec("blosc"), "uint8", Scatter((9000,), 1, ()))
        decoded = decode_chunk(chunk, memoryview(data), ScratchBuffer(), name="c")
        assert bytes(decoded) == bytes(9000)
        from numcodecs import blosc
        assert blosc.use_threads is None
        assert multiprocessing.get_start_method(allow_none=True) is None
        multiprocessing.set_start_method("spawn")
        again = blosc.compress(np.zeros(9000, np.uint8), b"lz4", 5, 2)  # numcodecs uses the lock
        assert blosc.decompress(again) == bytes(9000)
        assert not multiprocessing.active_children()
    """
    run_python(child)


@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib", "zstd"])
def test_every_compressor_within_blosc(cname: str, shuffle: int) -> None:
    for item_size, block_size in ((1, 0), (4, 256), (16, 1 << 20), (255, 0)):
        data = np.random.default_rng(0).integers(0, 9, 200_000, np.uint8)
        stored = Blosc(cname, 5, shuffle, block_size, item_size).encode(data)
        assert decode(stored, data.size) == data.tobytes()


def test_blosc_with_snappy_is_refused_by_name() -> None:
    """The builds of blosc that numcodecs and TensorStore have are without it."""
    stored = bytearray(chunk_encoder("blosc")(np.zeros(5000, np.uint8)))
    stored[2] = stored[2] & 0x1F | 2 << 5
    with pytest.raises(UnsupportedFormatError, match="compressed with snappy within blosc"):
        decode(bytes(stored), 5000)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"\x03", "is damaged"),  # another version
        (2, b"\xff", "is damaged"),  # flags that do not exist
        (3, b"\0", "is damaged"),  # items of no bytes
        (4, b"\xff\xff\xff\x7f", "100000 bytes once decoded, found 2147483647"),
        (8, b"\0\0\0\0", "is damaged"),  # blocks of no bytes
        (8, b"\xff\xff\xff\xff", "is damaged"),
        (12, b"\xff\xff\xff\x7f", "and 2147483647 by its header"),
        (12, b"\0\0\0\0", "and 0 by its header"),
        (16, b"\xff\xff\xff\x7f", "is damaged"),  # the place of the first block
    ],
)
def test_a_lying_header_of_blosc_is_refused(at: int, value: bytes, message: str) -> None:
    data = np.random.default_rng(0).integers(0, 4, 100_000, np.uint8)
    stored = bytearray(chunk_encoder("blosc")(data))
    stored[at : at + len(value)] = value
    with pytest.raises(CorruptionError, match=message):
        decode(bytes(stored), data.size)


def test_damaged_chunks_end_in_an_error_or_in_bytes() -> None:
    """2,000 seeded mutations of blosc and lz4, between pages that end the process if touched."""
    child = """
        import ctypes, mmap, random, threading
        import numpy as np
        from numcodecs import LZ4, Blosc
        from cordwood.errors import CorruptionError, UnsupportedFormatError
        from cordwood.index import Codec
        from cordwood.io.chunk_codecs import decode_chunk
        from cordwood.plan.load_plan import EncodedChunk, Scatter

        PAGE = mmap.PAGESIZE
        protect = ctypes.CDLL(None).mprotect
        dice = random.Random(0)

        class Guarded:
            def __init__(self, size):
                self.size = -(-size // PAGE) * PAGE
                self.pages = mmap.mmap(-1, self.size + 2 * PAGE)
                start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
                for page in (start, start + PAGE + self.size):
                    assert protect(ctypes.c_void_p(page), PAGE, 0) == 0

            def view(self, size):
                first = PAGE + (self.size - size if dice.random() < 0.7 else 0)
                return memoryview(self.pages)[first : first + size]

        def mutated(data, size, is_blosc):
            data = bytearray(data)
            for _ in range(dice.choice([1, 1, 2, 4, 16])):
                at = dice.randrange(min(len(data), dice.choice([16, 64, len(data)])))
                kind = dice.randrange(5)
                if kind == 0:
                    data[at] ^= 1 << dice.randrange(8)
                elif kind == 1:
                    data[at] = dice.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
                elif kind == 2:
                    value = dice.choice([0, 1, 2**31 - 1, 2**32 - 1, dice.randrange(1 << 20)])
                    data[at : at + 4] = value.to_bytes(4, "little")
                elif kind == 3 and len(data) > 30:
                    del data[at : at + dice.randrange(1, 9)]
                else:
                    data[at:at] = dice.randbytes(dice.randrange(1, 9))
            if is_blosc and dice.random() < 0.8:  # let blosc itself find the damage
                data[4:8] = size.to_bytes(4, "little")
                data[12:16] = len(data).to_bytes(4, "little")
            return data

        chunks = []
        for size in (64, 1000, 5000, 100_000):
            data = np.random.default_rng(0).integers(0, 4, size, np.uint8)
            chunks.append(("lz4", size, LZ4().encode(data)))
            for name in ("blosclz", "lz4", "zlib", "zstd"):
                for item_size in (1, 4, 255):
                    codec = Blosc(name, 5, item_size % 3, 0, item_size)
                    chunks.append(("blosc", size, codec.encode(data)))

        source, target = Guarded(1 << 18), Guarded(1 << 18)

        def work():
            for _ in range(2000):
                compressor, size, data = dice.choice(chunks)
                damaged = mutated(data, size, compressor == "blosc")
                view = source.view(len(damaged))
                view[:] = damaged
                chunk = EncodedChunk(0, 0, 0, Codec(compressor), "uint8", Scatter((size,), 1, ()))
                try:
                    outcomes.append(len(decode_chunk(chunk, view, target, name="c")) == size)
                except CorruptionError:
                    outcomes.append(None)
                except UnsupportedFormatError as e:
                    assert "snappy" in str(e)

        outcomes = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(len(outcomes), outcomes.count(None), outcomes.count(False))
    """
    count, refused, short = map(int, run_python(child, flags=("-X", "faulthandler")).split())
    assert (count > 1900, short) == (True, 0)
    assert count // 4 < refused < count


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("count", [1, 127, 300, 1 << 20, (1 << 20) + 3])
def test_archives_are_chunks_that_blosc_reads(dtype: str, count: int) -> None:
    """Weights, zeros and random bytes; less than a block, whole blocks, and a smaller last one."""
    random = np.random.default_rng(0)
    kind = dtypes.to_numpy(dtype)
    count = min(count, (5 << 20) // kind.itemsize)
    weights = random.standard_normal(count, np.float32)
    for array in (
        (weights * 9).astype(kind),
        np.zeros(count, kind),
        np.frombuffer(random.bytes(count * kind.itemsize), kind),
    ):
        data = chunk_encoder("archive")(array)
        assert data == chunk_encoder("archive")(array)
        assert len(data) <= array.nbytes + 16
        assert bytes(Blosc().decode(data)) == array.tobytes()
        assert decode(data, array.nbytes) == array.tobytes()


def test_an_archive_of_weights_is_near_the_entropy_of_their_bytes() -> None:
    weights = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    array = weights.astype(dtypes.to_numpy("bfloat16"))
    bits = 0.0
    for plane in array.view(np.uint8).reshape(-1, 2).T:
        shares = np.unique(plane, return_counts=True)[1] / plane.size
        bits -= float((shares * np.log2(shares)).sum())
    data = chunk_encoder("archive")(array)
    assert bits / 16 < len(data) / array.nbytes < 1.04 * bits / 16
    stock = Blosc("zstd", clevel=1, shuffle=1).encode(array.view(np.uint16))
    assert len(data) < len(stock)
