"""`model.safetensors.index.json`: the same files, for tools that read Hugging Face's layout."""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring as _quoted  # type: ignore[attr-defined, unused-ignore]

from cordwood.encoding.tensor_names import tensor_names
from cordwood.formats.packs.index_item import Item
from cordwood.tree.structure import leaf_paths

HUGGING_FACE_NAME = "model.safetensors.index.json"


def hugging_face_index(items: Mapping[str, Item]) -> bytes | None:
    """Return the index that names the file of each tensor; None if it could not describe all.

    It could not if a leaf is cut into several tensors, if leaves of two items have one name, if
    files hold tensors that belong to no leaf, or if there are no arrays.
    """
    weight_map: dict[str, str] = {}
    total = count = 0
    for item in items.values():
        if any(packed.grid is not None and packed.grid.cell_count > 1 for packed in item.types):
            return None
        if any(pack.has_gaps for pack in item.packs):
            return None
        files = {}
        for pack in item.packs:
            assert pack.source.header_digest is not None
            total += pack.source.size_bytes - pack.source.header_digest.header_bytes
            for column, _ in pack.parts:
                files.update(dict.fromkeys(item.columns[column].tolist(), pack.source.name))
        paths = leaf_paths(item.structure)
        leaves = sorted(files)
        names = tensor_names([paths[leaf] for leaf in leaves]).names
        weight_map.update({name: files[leaf] for name, leaf in zip(names, leaves, strict=True)})
        count += len(leaves)
    if not weight_map or len(weight_map) != count:
        return None
    # As json.dumps would with an indent, in a tenth of the time.
    lines = [f"    {_quoted(name)}: {_quoted(file)}" for name, file in weight_map.items()]
    head = f'{{\n  "metadata": {{\n    "total_size": {total}\n  }},\n  "weight_map": {{\n'
    return "".join([head, ",\n".join(lines), "\n  }\n}\n"]).encode()
