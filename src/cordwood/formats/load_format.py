"""The modules of a format, imported when they are used."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format, by_name
from cordwood.storage.locations import Location

if TYPE_CHECKING:
    from cordwood.formats.format_protocol import (
        Collector,
        CompanionReader,
        DataFileLister,
        Detector,
        DirectoryStorage,
        FileLister,
        IndexLister,
        ItemLister,
        LossFinder,
        MetricsReader,
        OtherItemReader,
        Reader,
        RunReader,
        StepCopier,
        StepFileLister,
        StepMetrics,
        StepRecords,
        StepsBeside,
        TaskWriter,
        Writer,
    )


def match_of(format: Format, place: Place) -> Match:
    """Return how well a file or directory fits a format."""
    if format.detector:
        return cast("Detector", import_module(format.detector)).matches(format, place)
    is_checkpoint = place.file is None and place.has(format.index_name)
    return Match.YES if is_checkpoint else Match.NO


def best_match(
    formats: Sequence[Format], place: Place, *, above: Match = Match.NO
) -> Format | None:
    """Return the format that fits best, of equal ones the first; None if none fits."""
    best = None
    for format in formats:
        match = match_of(format, place)
        if match > above:
            best, above = format, match
        if match == Match.YES:
            break
    return best


def reader_of(format: Format) -> Reader:
    """Return the module that reads a format."""
    return cast("Reader", import_module(format.reader))


def writer_of(format: Format) -> Writer:
    """Return the module that writes a format; it must have one."""
    return cast("Writer", import_module(format.writer))


def item_names(format: Format, location: Location) -> Sequence[str]:
    """Return the names of the items of a checkpoint, sorted; "" for the one without a name."""
    if not format.items:
        return [""]
    return cast("ItemLister", import_module(format.items)).item_names(location)


def other_item_reader_of(format: Format) -> OtherItemReader:
    """Return the module that reads items that are no trees; the format must have one."""
    return cast("OtherItemReader", import_module(format.other_items))


def saved_metrics(format: Format, place: Place) -> StepMetrics | None:
    """Return the metrics that a tool saved with a step; None if there are none."""
    if not format.metrics:
        return None
    return cast("MetricsReader", import_module(format.metrics)).saved_metrics(place)


def foreign_files(name: str, location: Location, names: Sequence[str]) -> Collection[str] | None:
    """Return the files in a checkpoint that are no part of it, by the name of its format.

    None for a format whose files are not known.
    """
    format = by_name(name)
    if format is None or not format.files:
        return None
    return cast("FileLister", import_module(format.files)).foreign_files(location, names)


def is_unfinished(format: Format, place: Place) -> bool:
    """Return whether a directory of a format is a checkpoint of a tool whose save did not end."""
    return bool(format.runs) and run_reader_of(format).is_unfinished_at(place)


def steps_beside(format: Format, place: Place) -> Sequence[str]:
    """Return the steps that lie in a checkpoint of a format beside its tree, oldest first.

    A Trainer of Hugging Face writes its checkpoints into the directory of its model.
    """
    if not format.steps_beside:
        return ()
    return cast("StepsBeside", import_module(format.steps_beside)).steps_beside(place)


def index_lister_of(format: Format) -> IndexLister:
    """Return the module that lists the leaves of a format by its index; it must have one."""
    return cast("IndexLister", import_module(format.lister))


def loss_finder_of(format: Format) -> LossFinder:
    """Return the module that says what a format cannot store; it must have one."""
    return cast("LossFinder", import_module(format.losses))


def collector_of(format: Format) -> Collector:
    """Return the module for files of killed saves in checkpoints; the format must have one."""
    return cast("Collector", import_module(format.collector))


def storage_of(format: Format) -> DirectoryStorage:
    """Return the module of the storage of a format's directories; it must have one."""
    return cast("DirectoryStorage", import_module(format.storage))


def data_file_lister_of(format: Format) -> DataFileLister:
    """Return the module that lists the data files of a format; it must have one."""
    return cast("DataFileLister", import_module(format.data_files))


def records_of(format: Format) -> StepRecords:
    """Return the module for the records of steps; the format must have one."""
    return cast("StepRecords", import_module(format.records))


def step_files_of(format: Format) -> StepFileLister:
    """Return the module that lists the data files of steps; the format must have one."""
    return cast("StepFileLister", import_module(format.step_files))


def task_writer_of(format: Format) -> TaskWriter | None:
    """Return the module by which workers write a format together; None if it has none."""
    if not format.task_writer:
        return None
    return cast("TaskWriter", import_module(format.task_writer))


def copier_of(format: Format) -> StepCopier:
    """Return the module that copies steps file by file; the format must have one."""
    return cast("StepCopier", import_module(format.copier))


def companion_reader_of(format: Format) -> CompanionReader:
    """Return the module that reads the files beside the weights; the format must have one."""
    return cast("CompanionReader", import_module(format.companions))


def run_reader_of(format: Format) -> RunReader:
    """Return the module that knows the steps of a tool's runs; the format must have one."""
    return cast("RunReader", import_module(format.runs))
