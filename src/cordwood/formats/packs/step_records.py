"""The record of a manager in the index of a step, and the metrics that are added to it later.

The record is a string in the metadata of the tree that has no prefix. So a change of its metrics is
a new index, under its digest, and no data file changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cordwood.errors import PrefixError, StepError, UnsupportedFormatError
from cordwood.formats.format_protocol import StepIndex
from cordwood.formats.packs.cordwood_json import (
    INDEX_NAME,
    asks_for_orbax,
    data_bytes_of,
    decode_index,
    encode_index,
    names_in,
)
from cordwood.formats.packs.parse_item import check_items
from cordwood.formats.step_record import (
    KEY,
    ORBAX_ITEM,
    ORBAX_KEY,
    Record,
    encode_record,
    is_unshared,
    record_in,
    record_text_in,
)
from cordwood.formats.version_record import KEY as VERSION_KEY
from cordwood.formats.version_record import version_in
from cordwood.io.open_files import naming
from cordwood.storage.storage_protocol import IndexChange, Sidecar


def read_step_index(index: bytes) -> StepIndex:
    """Return the facts in an index about its step. Raises as `decode_index`, without a name."""
    items = decode_index(index)
    metadata = _metadata(items)
    is_version = isinstance(metadata, Mapping) and VERSION_KEY in metadata
    return StepIndex(
        record_text_in(metadata), data_bytes_of(items), is_version, is_unshared(metadata)
    )


def read_record(index: bytes, *, name: str) -> Record | None:
    """Return the record in the index of a step; None if no manager saved it.

    `name` is the path or URL of the step, for errors.
    """
    with naming(f"{name}/{INDEX_NAME}"):
        return record_in(_metadata(decode_index(index)))


def change_of_metrics(
    index: bytes, metrics: Mapping[str, float], *, name: str, overwrite: bool
) -> IndexChange:
    """Return the change of an index that adds metrics to the record of its step.

    Args:
        index: the index.
        metrics: the metrics by name.
        name: the path or URL of the step, for errors.
        overwrite: True to replace values that are there.

    Raises StepError if no manager saved the step, or if a metric has another value already.
    """
    with naming(f"{name}/{INDEX_NAME}"):
        items = decode_index(index)
        record = record_in(_metadata(items))
        files = names_in(items)
    if record is None:
        raise StepError(
            f"{name}: no CheckpointManager saved this step, so it has no record for metrics"
        )
    for each, value in metrics.items():
        before = record.metrics.get(each)
        if not overwrite and before is not None and str(before) != str(value):  # where NaN is NaN
            raise StepError(
                f"{name}: step {record.step} has {each}={before:g} already, and cannot be given "
                f"{value:g}: pass overwrite=True, or choose another name"
            )
    data = _with_record(items, record._replace(metrics={**record.metrics, **metrics}))
    sidecars: Mapping[str, Sidecar | None] = {}
    if asks_for_orbax(items):
        from cordwood.formats.packs.for_orbax.orbax_index import changed_values

        sidecars = changed_values(decode_index(data))
    return IndexChange(data, {}, {}, files, frozenset(), sidecars)


def change_for_orbax(index: bytes, item: str | None, *, name: str) -> IndexChange:
    """Return the change of an index by which Orbax reads its checkpoint too.

    Args:
        index: the index.
        item: the name of the tree for Orbax; None: that of the index for Orbax that is there, or
            `ORBAX_ITEM` for a step of a manager, or "" for any other checkpoint.
        name: the path of the checkpoint, for errors.

    Raises as `cordwood.save` with `orbax=`, and PrefixError and UnsupportedFormatError.
    """
    from cordwood.formats.packs.for_orbax.orbax_index import (
        orbax_files,
        orbax_paths,
        require_folders,
    )

    with naming(f"{name}/{INDEX_NAME}"):
        items = decode_index(index)
        files = names_in(items)
    metadata = _metadata(items)
    if not isinstance(metadata, dict):
        raise PrefixError(f"{name}: an index for Orbax needs a tree without a prefix; it has none")
    version = version_in(metadata, name)
    if version is not None and not version.is_whole:
        raise UnsupportedFormatError(
            f"{name} is a delta, and Orbax would take the changes for the tree: expected a tree. "
            "cordwood.load makes it of a published version, and cordwood.apply_delta of another "
            "delta and its base; save that with orbax=True"
        )
    if any("/" in file for file in files):
        raise UnsupportedFormatError(
            f"{name}: its files are in the pool of its run, and Orbax finds files in the step "
            "alone: copy the step (cordwood copy), and index the copy"
        )
    if item is None:
        usual = ORBAX_ITEM if KEY in metadata else ""
        item = metadata.get(ORBAX_KEY, usual)
    changed = {**items, "": {**items[""], "metadata": {**metadata, ORBAX_KEY: item}}}
    data = encode_index(changed)
    with naming(f"{name}/{INDEX_NAME}"):
        checked = check_items(changed, index_bytes=len(data))
    require_folders({prefix: each.metadata for prefix, each in checked.items()})
    sidecars = orbax_files(checked)
    sidecars.update(dict.fromkeys(orbax_paths(items) - sidecars.keys()))
    return IndexChange(data, {}, {}, files, frozenset(), sidecars)


def metrics_if_same_save(index: bytes, other: bytes) -> Mapping[str, float] | None:
    """Return the metrics of both, if two indexes are of the same save; None for two saves.

    None also if a metric has two values.
    """
    both = [decode_index(each) for each in (index, other)]
    records = [record_in(_metadata(items)) for items in both]
    if records[0] is None or records[1] is None:
        return None
    bare = [
        _with_record(items, record._replace(metrics={}), drop=(ORBAX_KEY,))
        for items, record in zip(both, records, strict=True)
        if record is not None
    ]
    one, two = records[0].metrics, records[1].metrics
    agree = all(str(one[name]) == str(two[name]) for name in one.keys() & two.keys())
    return {**one, **two} if bare[0] == bare[1] and agree else None


def _metadata(items: Mapping[str, Any]) -> object:
    item = items.get("")
    return item.get("metadata") if type(item) is dict else None


def _with_record(items: Mapping[str, Any], record: Record, *, drop: Collection[str] = ()) -> bytes:
    metadata = {**items[""]["metadata"], KEY: encode_record(record)}
    metadata = {name: text for name, text in metadata.items() if name not in drop}
    return encode_index({**items, "": {**items[""], "metadata": metadata}})
