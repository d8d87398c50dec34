"""Files that no format here reads: what a file is, by its first bytes, and what to do with it.

The errors of all formats, and `detect`, ask `foreign_file`. To add a kind of file, add a row to
MAGIC; or a function to `_RECOGNISERS`, where no fixed bytes at a fixed offset tell it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from cordwood.errors import FormatError, LimitError
from cordwood.io.open_files import ReadableFile

_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 64 << 10  # of a zip archive: its directory comes last
_INNER_BYTES = 1 << 10  # of a compressed stream


class _Magic(NamedTuple):
    first_bytes: bytes
    text: str
    offset: int = 0


_NEVER = "which cordwood never loads"
_TORCH = (
    f"a PyTorch file (a pickle{{}}), {_NEVER}: load it with torch and write it with "
    "safetensors.torch.save_file"
)
_PICKLE = (
    f"a Python pickle, {_NEVER}: load it with the program that wrote it, and save the arrays with "
    "cordwood.save"
)
_AGAIN = "not the file itself: download it again"

MAGIC: Sequence[_Magic] = (
    _Magic(
        b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"
    ),
    _Magic(
        b"/annex/objects/", "a git-annex pointer, not the file itself: run `git annex get` for it"
    ),
    _Magic(
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file (as h5py and Keras write it): read it with h5py, and save the arrays with "
        "cordwood.save",
    ),
    *[
        _Magic(magic, "a netCDF file: read it with scipy or xarray, and save with cordwood.save")
        for magic in (b"CDF\1", b"CDF\2", b"CDF\5")
    ],
    _Magic(b"MATLAB 5.0", "a MATLAB file: read it with scipy.io.loadmat"),
    _Magic(
        b"GGUF",
        "a GGUF file of llama.cpp: read it with gguf.GGUFReader, or use the model's safetensors",
    ),
    *[
        _Magic(magic, "a GGML file of an old llama.cpp: use the model's safetensors")
        for magic in (b"lmgg", b"fmgg", b"tjgg")
    ],
    _Magic(b"TFL3", "a TensorFlow Lite model: read it with its interpreter", offset=4),
    _Magic(b"PAR1", "a Parquet file: read it with pyarrow or pandas"),
    _Magic(b"ARROW1", "an Arrow file: read it with pyarrow"),
    _Magic(b"SQLite format 3\0", "a SQLite database: read it with sqlite3"),
    _Magic(b"ustar", "a tar archive: unpack it, and load what was in it", offset=257),
    _Magic(b"BZh", "a bzip2 stream: decompress it first"),
    _Magic(b"\xfd7zXZ\0", "an xz stream: decompress it first"),
    _Magic(b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it, and load what was in it"),
    _Magic(b"\x04\x22\x4d\x18", "an lz4 stream: decompress it first"),
    _Magic(
        b"\x0c\xdb\x3a\x2a",
        "a part of a database of TensorStore's (OCDBT): load the directory of its manifest.ocdbt",
    ),
)


def foreign_file(file: ReadableFile) -> str | None:
    """Return what a file is, in words, and what to do with it; None for a file of no known kind.

    Little of it is read, and nothing is unpickled. No file of the formats here is recognised,
    except for zip, gzip and zstd, of which only the container is.
    """
    size_bytes = file.size_bytes
    if not size_bytes:
        return "an empty file: copy or save it again"
    tail_bytes = min(_TAIL_BYTES, size_bytes)
    tail = file.read(size_bytes - tail_bytes, tail_bytes)
    return _kind_of(_Content(file.read(0, min(_HEAD_BYTES, size_bytes)), tail, is_file=True))


class _Content(NamedTuple):
    """The first and the last bytes of a file, or the first ones of a stream within it."""

    head: bytes
    tail: bytes = b""
    is_file: bool = False


def _kind_of(content: _Content) -> str | None:
    """Return the kind of a file, or of the content of a stream: streams in streams are not read."""
    for first_bytes, text, offset in MAGIC:
        if content.head.startswith(first_bytes, offset):
            return text
    recognisers = [*_RECOGNISERS, *_STREAMS] if content.is_file else _RECOGNISERS
    kinds = (recognise(content) for recognise in recognisers)
    return next((kind for kind in kinds if kind is not None), None)


@contextmanager
def naming_foreign_file(file: ReadableFile, expected: str) -> Iterator[None]:
    """Replace a FormatError of the block by one that says what the file is, where that is known.

    Args:
        file: the file that is read in the block, open.
        expected: a few words, such as "a safetensors file".
    """
    try:
        yield
    except FormatError as e:
        what = foreign_file(file)
        if what is None:
            raise
        raise not_expected(file.name, expected, what, error=e) from e


def not_expected(name: str, expected: str, what: str, *, error: FormatError) -> FormatError:
    """Return the error for a file that is something else than expected, in place of `error`."""
    kind = FormatError if isinstance(error, LimitError) else type(error)
    return kind(f"{name}: expected {expected}, found {what}")


# Kinds that no fixed bytes at a fixed offset tell

_PICKLE_2 = re.compile(rb"\x80[\x02-\x05]")
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number, pickled
# Of protocols 0 and 1: a dict, a list, a tuple; or an object by its constructor.
_PICKLE_0 = re.compile(
    rb"[(][dlt]p?[0-9]*\n|[\]}]q\0|c(?:copy_reg|__builtin__|numpy|collections|torch)[.\w]*\n\w+\n"
)


def _pickle(content: _Content) -> str | None:
    head = content.head
    if head.startswith(_OLD_TORCH):
        return _TORCH.format(" of PyTorch before 1.6")
    if not _PICKLE_2.match(head) and not _PICKLE_0.match(head):
        return None
    if b"joblib.numpy_pickle" in head[:_INNER_BYTES]:
        return (
            f"a Python pickle of joblib, {_NEVER}: load it with joblib.load, and save the arrays "
            "with cordwood.save"
        )
    return _PICKLE


def _zip(content: _Content) -> str | None:
    if not content.head.startswith(b"PK"):
        return None
    names = content.head + content.tail
    if b"data.pkl" in names:
        return _TORCH.format(" in a zip archive")
    if b"model.weights.h5" in names:
        return (
            "a model of Keras 3 (HDF5 in a zip archive): load it with keras.saving.load_model, and "
            "save the arrays with cordwood.save"
        )
    if content.tail and b"PK\5\6" not in content.tail:
        return "a zip archive that is cut short: download or copy it again"
    if b".npy" in names:
        return None
    return "a zip archive without .npy members: unpack it, and load what was in it"


def foreign_content(file: ReadableFile) -> str | None:
    """Return what a gzip or zstd stream contains, in words; None for no known kind, or no stream.

    Flax's msgpack is no known kind here.
    """
    stream = _content_of_stream(file.read(0, min(_HEAD_BYTES, file.size_bytes)))
    return None if stream is None else _kind_of(_Content(stream[1]))


def _stream(content: _Content) -> str | None:
    stream = _content_of_stream(content.head)
    if stream is None:
        return None
    name, inner = stream
    kind = _kind_of(_Content(inner))
    if kind is not None:
        return f"a {name} stream that contains {kind}"
    return f"a {name} stream that does not contain Flax's msgpack: decompress it first"


def _content_of_stream(head: bytes) -> tuple[str, bytes] | None:
    """Return the name and the first content of a gzip or zstd stream; None for anything else."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip", _inflated(head, 16 + zlib.MAX_WBITS)
    if not head.startswith(b"\x28\xb5\x2f\xfd"):
        return None
    import zstandard

    try:
        return "zstd", zstandard.ZstdDecompressor().stream_reader(head).read(_INNER_BYTES)
    except zstandard.ZstdError:
        return "zstd", b""


def _zlib(content: _Content) -> str | None:
    """Return a text for a stream of zlib, in which joblib keeps pickles."""
    head = content.head
    if head[:1] != b"\x78" or int.from_bytes(head[:2], "big") % 31:
        return None
    inner = _kind_of(_Content(_inflated(head, zlib.MAX_WBITS)))
    return None if inner is None else f"a zlib stream that contains {inner}"


def _inflated(head: bytes, wbits: int) -> bytes:
    try:
        return zlib.decompressobj(wbits).decompress(head, _INNER_BYTES)
    except zlib.error:
        return b""


def _tensorflow(content: _Content) -> str | None:
    if not content.tail.endswith(b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"):
        return None
    return (
        "the index of a TensorFlow checkpoint: read it with tf.train.load_checkpoint, and save the "
        "arrays with cordwood.save"
    )


_PAGE = re.compile(rb"\s*(?:<!--.*?-->\s*)?<(?:!doctype html|html|head|body)\b", re.I | re.S)
_XML = re.compile(rb"\s*<\?xml\b|\s*<Error>", re.I)
_BOM = b"\xef\xbb\xbf"


def _markup(content: _Content) -> str | None:
    text = content.head.removeprefix(_BOM)
    if _PAGE.match(text):
        return f"an HTML page (a login, or a message of a server), {_AGAIN}"
    if not _XML.match(text):
        return None
    if b"<Error>" in text[:_INNER_BYTES]:
        return f"the error of a server, in XML, {_AGAIN}"
    return "an XML text, which has no arrays"


# Members of objects that tell their kinds.
_JSON_KINDS: Sequence[tuple[str, str]] = (
    (
        "weight_map",
        "the index of a checkpoint in several files: load its directory, with all of the files",
    ),
    ("tree_metadata", "the metadata of an Orbax checkpoint: load its directory"),
    ("zarr_format", "the metadata of a zarr array or group: load its directory"),
    ("zarr_consolidated_format", "the metadata of a zarr group: load its directory"),
    ("model_type", "the configuration of a model, without its weights: load model.safetensors"),
)
_JSON = re.compile(rb"\s*(?:\{\s*(?:\"|\})|\[\s*(?:[\[{\"\d\-]|\]|true|false|null))")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")


def _json(content: _Content) -> str | None:
    text = content.head.removeprefix(_BOM)
    if not _JSON.match(text) or _BINARY.search(text):
        return None
    kinds = (kind for member, kind in _JSON_KINDS if f'"{member}"'.encode() in text)
    return next(kinds, "a JSON text, which has no arrays: read it with json.load")


def _zeros(content: _Content) -> str | None:
    if len(content.head) < 64 or any(content.head):
        return None
    return (
        "a file that begins with zeros alone: its space was reserved, and its content never "
        "written; download or copy it again"
    )


_RECOGNISERS: Sequence[Callable[[_Content], str | None]] = (
    _pickle,
    _zip,
    _markup,
    _json,
    _zeros,
    _tensorflow,
)
_STREAMS: Sequence[Callable[[_Content], str | None]] = (_stream, _zlib)
