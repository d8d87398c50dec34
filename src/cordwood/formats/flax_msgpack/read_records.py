"""The index of a stream of msgpack records: a key path and Flax's bytes of a value each.

EasyLM's StreamingCheckpointer writes such streams, and eFormer's CheckpointManager into buckets:
`msgpack.pack((keys, flax.serialization.to_bytes(value)))` for each entry of the flattened state
dict.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.flax_msgpack.byte_window import ByteWindow
from cordwood.formats.flax_msgpack.read_index import MAX_NODES, MAX_PATH_KEYS, read_value
from cordwood.formats.flax_msgpack.wire import decode_text, read_token
from cordwood.index import Index, Leaf, Node, Source
from cordwood.io.open_files import ReadableFile, unchanged_during
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "msgpack-records"
MAX_KEYS = 64  # of one record

_Value: TypeAlias = tuple[list[Node], list[Leaf]]


def read_index(file: ReadableFile) -> Index:
    """Read the index of a stream: nested dicts of numpy arrays. The file has no checksums.

    Raises:
        FormatError: it is not such a stream, or two records have the same keys; the message names
            the byte.
        TruncatedError: it ends inside a record.
        LimitError: a record has more than MAX_KEYS keys, or all records together exceed the limits
            of a Flax file.
    """
    with gc_paused(), unchanged_during(file) as read:
        name = file.name
        window = ByteWindow(read, stop=file.size_bytes, name=name)
        tree: dict[str, Any] = {}
        at = node_count = key_count = 0
        max_keys = MAX_PATH_KEYS + file.size_bytes // 4
        while at < file.size_bytes:
            keys, start, stop = _read_record(window, at)
            value = read_value(
                ByteWindow(read, start=start, stop=stop, name=f"{name}: the value at byte {start}")
            )
            nodes, leaves = value
            node_count += len(keys) + len(nodes)
            key_count += sum([len(keys) + len(leaf.key_path) for leaf in leaves])
            if node_count > MAX_NODES or key_count > max_keys:
                limit = f"{MAX_NODES} values" if node_count > MAX_NODES else f"{max_keys} keys"
                raise LimitError(
                    f"{name}: byte {at}: more than {limit} in all records, key paths written out"
                )
            _put(tree, keys, value, f"{name}: byte {at}: {'/'.join(keys)!r:.200}")
            at = stop
        nodes, leaves = _flatten_tree(tree)
        source = Source(name, file.size_bytes)
        return Index(FORMAT, tuple(nodes), tuple(leaves), (source,), "strings")


def begins_record(file: ReadableFile) -> bool:
    """Return whether a file begins with a record: keys and a binary value."""
    try:
        _read_record(ByteWindow(file.read, stop=file.size_bytes, name=file.name), 0)
    except TruncatedError:
        return True  # the data ends inside the record
    except FormatError:
        return False
    return True


def _read_record(window: ByteWindow, at: int) -> tuple[list[str], int, int]:
    """Return the keys of a record, and the start and end of its value."""
    name = window.name
    token = read_token(window, at)
    if token.kind != "array" or token.value != 2:
        raise FormatError(
            f"{name}: byte {at}: expected a record of keys and a value, found {token.kind}"
        )
    path = read_token(window, token.start)
    if path.kind != "array" or not path.value:
        raise FormatError(f"{name}: byte {token.start}: expected the keys of a record")
    if path.value > MAX_KEYS:
        raise LimitError(
            f"{name}: byte {token.start}: {path.value} keys; expected at most {MAX_KEYS} (MAX_KEYS)"
        )
    keys = []
    pos = path.start
    for _ in range(path.value):
        key = read_token(window, pos)
        if key.kind != "str":
            raise FormatError(f"{name}: byte {pos}: expected a key, a str, found {key.kind}")
        keys.append(decode_text(window, key.start, key.stop))
        pos = key.stop
    value = read_token(window, pos)
    if value.kind != "bin":
        raise FormatError(f"{name}: byte {pos}: expected the bytes of a value, found {value.kind}")
    return keys, value.start, value.stop


def _put(tree: dict[str, Any], keys: list[str], value: _Value, where: str) -> None:
    node = tree
    for key in keys[:-1]:
        node = node.setdefault(key, {})
        if type(node) is not dict:
            raise FormatError(f"{where} is inside the value of another record")
    if keys[-1] in node:
        raise FormatError(f"{where}: another record has the same keys")
    node[keys[-1]] = value


def _flatten_tree(tree: dict[str, Any]) -> tuple[list[Node], list[Leaf]]:
    """Return the nodes in pre-order, and the leaves with their full key paths."""
    nodes: list[Node] = []
    leaves: list[Leaf] = []
    stack: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            nodes.append(Node("dict", len(value), tuple(value)))
            stack += [((*path, key), value[key]) for key in reversed(value)]
        else:
            nodes += value[0]
            leaves += [leaf._replace(key_path=(*path, *leaf.key_path)) for leaf in value[1]]
    return nodes, leaves
