"""The files in a directory of packs that no item refers to: report and remove them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, PACK_NAME
from cordwood.formats.packs.for_orbax.orbax_sidecars import orbax_sidecars, other_files
from cordwood.formats.packs.hub_index import hub_index_state, sidecars_of
from cordwood.formats.packs.item import Item
from cordwood.formats.packs.packs_storage import require_index, store_at
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.unshared.step_files import UNSHARED_ADVICE, missing_files_text
from cordwood.formats.step_names import step_in_name
from cordwood.formats.step_record import record_in, wrong_step
from cordwood.storage.locations import Location
from cordwood.storage.storage_protocol import Garbage, Storage

_OTHER = "is not the one of this index: gc (cordwood gc) writes it again"


def extra_problems(location: Location) -> list[str]:
    """Return a line for each problem: surplus files, and an index or record of something else.

    Raises FormatError for an index that is not what docs/format.md says.
    """
    store = store_at(location)
    data = require_index(store)
    items = parse_items(data, name=store.name)
    problems = [*_surplus(store, items), *_of_another_step(store, items)]
    if missing := missing_files_text(data, store.names()):
        problems.append(f"{missing}; {UNSHARED_ADVICE}")
    if store.read_index() != data:
        return problems
    if hub_index_state(store, items) == "damaged":
        problems.append(f"{HUGGING_FACE_NAME} {_OTHER}")
    return problems + [f"{path} {_OTHER}" for path in other_files(store, items).damaged]


def stale_files(location: Location) -> list[str]:
    """Return the files beside the index that an earlier save has written.

    Raises as `extra_problems` does.
    """
    store = store_at(location)
    items = parse_items(require_index(store), name=store.name)
    stale = [HUGGING_FACE_NAME] if hub_index_state(store, items) == "stale" else []
    return stale + other_files(store, items).missing


def _of_another_step(store: Storage, items: Mapping[str, Item]) -> list[str]:
    """Return a line if the directory is named as one step, and a manager's record names another."""
    name = store.location.name
    step = step_in_name(name)
    record = None
    with suppress(CordwoodError):  # not a manager's, or a newer one's
        record = record_in(items[""].metadata) if "" in items else None
    if record is None or step is None or record.step == step:
        return []
    return [wrong_step(record, name)]


def _surplus(store: Storage, items: Mapping[str, Item]) -> Iterator[str]:
    """Return the data files of the items' own saves that no item refers to.

    Files of other saves are passed over: such a save may be under way, or was killed.
    """
    referenced = {pack.source.name for item in items.values() for pack in item.packs}
    saves = {item.save_id for item in items.values()}
    for name in store.names():
        match = PACK_NAME.fullmatch(name)
        if match is not None and match["save"] in saves and name not in referenced:
            yield f"{name}: the index does not refer to it, but to others of the same save"


def collect(location: Location, *, dry_run: bool) -> Garbage:
    """Remove the files of killed saves, and write an index for the hub again that is stale."""
    store = store_at(location)
    return store.collect(
        dry_run=dry_run,
        sidecars_of=lambda index: sidecars_of(index, name=store.name),
        optional_sidecars_of=lambda index: orbax_sidecars(parse_items(index, name=store.name)),
    )
