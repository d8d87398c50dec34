"""The change of an index that a save makes: its items take the place of those of its prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood.formats.packs.cordwood_json import (
    INDEX_NAME,
    asks_for_orbax,
    decode_index,
    encode_index,
    names_in,
)
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME
from cordwood.formats.packs.for_orbax.orbax_sidecars import orbax_sidecars
from cordwood.formats.packs.hub_index import hugging_face_index
from cordwood.formats.packs.parse_item import check_items
from cordwood.io.open_files import naming
from cordwood.storage.storage_protocol import IndexChange, Sidecar


class NewItems(NamedTuple):
    """The items of a save.

    Attributes:
        name: the name of the directory, for errors.
        items: the items in JSON form, by their prefixes.
        file_sizes: the sizes of the files that they refer to, by name.
        is_whole: True if items of other prefixes are dropped.
    """

    name: str
    items: Mapping[str, Any]
    file_sizes: Mapping[str, int]
    is_whole: bool

    def change(self, old: bytes | None) -> IndexChange:
        """Return the change of an index; None: there is none yet.

        Raises as `parse_items` does: the old index cannot be kept in part.
        """
        with naming(f"{self.name}/{INDEX_NAME}"):
            old_items = {} if old is None else decode_index(old)
            before = names_in(old_items)
        others = {} if self.is_whole else old_items
        items = dict(sorted({**others, **self.items}.items()))
        data = encode_index(items)
        with naming(f"{self.name}/{INDEX_NAME}"):
            checked = check_items(items, index_bytes=len(data))
        for_orbax: dict[str, Sidecar | None] = orbax_sidecars(checked)
        if asks_for_orbax(old_items):
            from cordwood.formats.packs.for_orbax.orbax_index import orbax_paths

            for_orbax.update(dict.fromkeys(orbax_paths(old_items) - for_orbax.keys()))
        beside = {HUGGING_FACE_NAME: hugging_face_index(checked)}
        files = names_in(items)
        return IndexChange(data, self.file_sizes, beside, files, before - files, for_orbax)
