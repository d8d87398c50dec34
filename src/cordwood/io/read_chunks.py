"""Reading of encoded chunks, each of which is decoded as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.encoding.digests import check_coverage
from cordwood.errors import TruncatedError
from cordwood.index import Digests
from cordwood.io.check_digests import check_blocks
from cordwood.io.chunk_codecs import decode_chunk
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.open_files import ReadableFile
from cordwood.io.strided_copy import strided_copy
from cordwood.plan.load_plan import EncodedChunk


def read_chunk(
    chunk: EncodedChunk,
    file: ReadableFile,
    digests: Digests | None,
    buffers: Sequence[memoryview],
    scratch: ScratchBuffer,
    decoded: ScratchBuffer,
) -> None:
    """Read a chunk, and copy its elements to the buffers that need them.

    Args:
        chunk: the chunk.
        file: the file that holds it.
        digests: of the file; the blocks that the chunk overlaps are checked. None: not checked.
        buffers: the buffers of the plan.
        scratch: memory for the stored bytes.
        decoded: memory for the decoded bytes.
    """
    start, stop = chunk.offset, chunk.offset + chunk.length
    if not 0 <= start <= stop <= file.size_bytes:
        raise TruncatedError(
            f"{file.name}: expected a chunk of {chunk.length} bytes at offset {start}, but the "
            f"file ends at {file.size_bytes}; copy or save it again"
        )
    low, high = start, stop
    if digests is not None:
        check_coverage(file.name, file.size_bytes, digests)
        if stop > digests.start:
            block, first = digests.block_bytes, digests.start
            low = min(start, first) if start < first else start - (start - first) % block
            high = min(stop + (first - stop) % block, file.size_bytes)
    whole = scratch.view(high - low)
    file.read_into(low, [whole])
    if digests is not None and stop > digests.start:
        begin = max(low, digests.start)
        check_blocks(file.name, begin, [whole[begin - low :]], digests)
    data = whole[start - low : stop - low]
    elements = decode_chunk(chunk, data, decoded, name=file.name)
    strided_copy(chunk.scatter, elements, 0, buffers)
