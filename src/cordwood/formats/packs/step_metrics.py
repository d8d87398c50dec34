"""Metrics in the index of a step that a manager has saved: adding some later, and comparing.

They are a part of the record, which is a string in the metadata of the tree. So a change of them is
a new index, under its digest, and no data file changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import StepError
from cordwood.formats.packs.cordwood_json import INDEX_NAME, decode_index, encode_index, names_in
from cordwood.formats.step_record import KEY, Record, decode_record, encode_record
from cordwood.io.open_files import naming
from cordwood.storage.storage_protocol import IndexChange


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
        record = _record_of(items)
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
    return IndexChange(data, {}, {}, kept=files, dropped=frozenset())


def metrics_if_same_save(index: bytes, other: bytes) -> Mapping[str, float] | None:
    """Return the metrics of both, if two indexes are of the same save; None for two saves.

    None also if a metric has two values.
    """
    both = [decode_index(each) for each in (index, other)]
    records = [_record_of(items) for items in both]
    if records[0] is None or records[1] is None:
        return None
    bare = [
        _with_record(items, record._replace(metrics={}))
        for items, record in zip(both, records, strict=True)
        if record is not None
    ]
    one, two = records[0].metrics, records[1].metrics
    agree = all(str(one[name]) == str(two[name]) for name in one.keys() & two.keys())
    return {**one, **two} if bare[0] == bare[1] and agree else None


def record_of_index(index: bytes, *, name: str) -> Record | None:
    """Return the record in the index of a step; None if no manager saved it.

    `name` is the path or URL of the step, for errors.
    """
    with naming(f"{name}/{INDEX_NAME}"):
        return _record_of(decode_index(index))


def _record_of(items: Mapping[str, Any]) -> Record | None:
    """Return the record of a step; None if no manager saved it."""
    item = items.get("")
    metadata = item.get("metadata") if type(item) is dict else None
    text = metadata.get(KEY) if type(metadata) is dict else None
    return decode_record(text, KEY) if type(text) is str else None


def _with_record(items: Mapping[str, Any], record: Record) -> bytes:
    metadata = {**items[""]["metadata"], KEY: encode_record(record)}
    return encode_index({**items, "": {**items[""], "metadata": metadata}})
