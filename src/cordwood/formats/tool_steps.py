"""A step that another tool than `CheckpointManager` has saved: which tool, and whether it ended."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.format_protocol import StepMetrics
from cordwood.formats.load_format import is_unfinished, saved_metrics
from cordwood.formats.packs.packs_storage import RULES
from cordwood.formats.place import Place
from cordwood.formats.step_names import parse_step_name
from cordwood.formats.table import ORBAX, PACKS, ZARR
from cordwood.storage.locations import Url

CORDWOOD_SAVE = "cordwood.save"  # the tool of steps that no manager saved, and cordwood wrote
VERSION = "a version of weights"  # the problem of a step that a WeightPublisher saved
_TOOLS = {PACKS.name: CORDWOOD_SAVE, ZARR.name: "eFormer"}  # by the format; of others, the format
# The files that eFormer writes last: its Checkpointer, and its AsyncCheckpointManager alone.
_LAST_OF_EFORMER = ("metadata.json", "checkpoint_metadata.json")


class ToolStep(NamedTuple):
    """A step of another tool.

    Attributes:
        tool: the name of the tool.
        is_finished: False if its save is known not to have ended.
        metrics: the metrics that the tool has saved with it; None: none.
        format: of a file, its format; None for a directory.
    """

    tool: str
    is_finished: bool = True
    metrics: StepMetrics | None = None
    format: str | None = None


def step_of_tool(name: str, place: Place, *, is_file: bool) -> ToolStep | None:
    """Return the step of another tool that an entry named as a step is; None if it is none.

    `100` is of Orbax, or of `cordwood.save`; `checkpoint_100` of Flax, `run-100` of eFormer. A name
    such as `ckpt_100` is that of a step only if Orbax wrote it.

    Args:
        name: the name of the entry.
        place: its place.
        is_file: True for a file, False for a directory.
    """
    parsed = parse_step_name(name)
    if parsed is None or not (parsed.is_entry or parsed.has_prefix):
        return None
    if is_file:
        is_flax = parsed.word == "checkpoint_"
        return ToolStep("Flax", format="msgpack") if is_flax else None
    if place.directory is None and isinstance(place.location, Url):
        return None
    try:
        # A deletion that was interrupted leaves the index for other readers alone.
        has_content = not {*RULES.sidecars}.issuperset(place.names)
        format = format_in(place) if has_content else None
        if format is None or not (parsed.is_entry or format is ORBAX):
            return None
        is_finished = not is_unfinished(format, place)
        metrics = saved_metrics(format, place) if is_finished else None
        if parsed.word == "run-" and not any(map(place.has, _LAST_OF_EFORMER)):
            return None  # its save has not finished
    except (OSError, CordwoodError):
        return None
    return ToolStep(_TOOLS.get(format.name, format.name), is_finished, metrics)


def missing_files_note(format: str) -> str:
    """Return a few words about the files that the name of a step calls for, where none is a step.

    They follow the description of a checkpoint of that format.
    """
    last = _LAST_OF_EFORMER[0]
    return f", without the {last} that eFormer writes last" if format == ZARR.name else ""
