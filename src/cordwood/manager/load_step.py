"""The loading of a chosen step: its tree, and items beside it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from cordwood.errors import PrefixError
from cordwood.formats.step_record import PREFIX_KEY, Record
from cordwood.formats.stored_trees import StoredTrees, stored_trees
from cordwood.io.progress_bar import progress_display
from cordwood.loading.checkpoint import open_at
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_checkpoint
from cordwood.manager.byte_counter import ByteCounter
from cordwood.manager.choose_step import ChosenStep
from cordwood.manager.items.foreign_items import foreign_extras, load_foreign_item
from cordwood.manager.items.items_to_restore import load_item, require_items
from cordwood.manager.items.recorded_items import ITEM, describe
from cordwood.manager.items.stateful import is_stateful
from cordwood.manager.restore_request import RestoreRequest
from cordwood.manager.restored import Restored
from cordwood.message_text import printable, size_text
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import Location
from cordwood.threads.log import log

# Options that apply to trees among the items too; the others name leaves of the tree of the step.
_FOR_ITEMS = ("mesh", "rules", "strict", "cast", "missing", "extra")
_TO_THE_CALLER = 5  # frames from a warning to the caller of `CheckpointManager.restore`


class LoadedStep(NamedTuple):
    """A loaded step. Its items hold the states of stateful objects, which are to be set."""

    restored: Restored[Any]
    prefix: str | None  # the requested prefix, if it named the tree of the run; or None


def load_step(
    chosen: ChosenStep, location: Location, request: RestoreRequest, processes: Rendezvous
) -> LoadedStep:
    """Load a step, as one of the processes of a rendezvous, and log a line about it.

    Args:
        chosen: the step.
        location: where this process reads it.
        request: what is to be loaded of it.
        processes: the rendezvous.

    Raises as `cordwood.load` does, and MismatchError if the step lacks an item.
    """
    path, record = chosen.path, chosen.record
    kinds: Mapping[str, str] = {}
    trees: StoredTrees | None = None
    if record is not None:
        kinds = {name: describe(item) for name, item in record.items.items()}
    elif chosen.format is None:
        trees = stored_trees(location)
        kinds = trees.kinds
    keeps = request.options.get("missing") == "keep"
    require_items(request.items, kinds, keeps=keeps, path=path)
    start = time.monotonic()
    prefix = request.options.get("prefix")
    options: dict[str, Any] = {k: v for k, v in request.options.items() if k != "prefix"}
    if record is not None:
        prefix = _prefix_in_step(record, prefix, location)
    with progress_display(request.progress, "restoring") as report:
        counter = ByteCounter(report)
        load_options = LoadOptions(progress=counter.note, **options)
        tree = load_checkpoint(
            location, request.like, load_options, format=chosen.format, prefix=prefix
        )
        items = {}
        for_items: dict[str, Any] = {k: options[k] for k in _FOR_ITEMS if k in options}
        if isinstance(for_items.get("cast"), Mapping):  # by patterns of the tree's leaves
            del for_items["cast"]
        for_items["progress"] = counter.note
        for name, item in request.items.items():
            counter.begin_load()
            if name not in kinds:
                log.info("%s has no item %r: what was given is kept", path, name)
                if not is_stateful(item):
                    items[name] = item
            elif trees is not None:
                items[name] = load_foreign_item(
                    location, name, item, for_items, processes, trees=trees
                )
            elif record is not None:
                saved = record.items[name]
                items[name] = load_item(location, name, saved, item, for_items, processes)
        extras = None
        if record is not None:
            extras = record.extras
        elif trees is not None:
            extras = foreign_extras(location, trees)
    seconds = time.monotonic() - start
    log.log(
        logging.DEBUG if processes.index else logging.INFO,
        "restored step %d: %s read in %.3f s, %s/s (%s)",
        chosen.step,
        size_text(counter.size_bytes),
        seconds,
        size_text(counter.size_bytes / max(seconds, 1e-9)),
        path,
    )
    is_item = record is not None and prefix is not None
    restored = Restored(chosen.step, tree, chosen.metrics, extras, items)
    return LoadedStep(restored, None if is_item else request.options.get("prefix"))


def _prefix_in_step(record: Record, prefix: str | None, path: Location) -> str | None:
    """Return the prefix of a tree in a manager's step; None stands for the tree of the run.

    A step of another tool may hold several trees, and the tree of the run is one of them; a
    manager's step holds that tree without a prefix. So that one script restores both, a step
    records the prefix by which its job restored the tree of the run, and accepts that prefix for
    this tree.

    Raises PrefixError for another prefix if the step has several trees. If it has only one, warns
    and returns None.
    """
    if prefix is None or record.items.get(prefix) == ITEM:
        return prefix
    with open_at(path) as checkpoint:
        recorded_prefix = checkpoint.metadata.get(PREFIX_KEY)
    if prefix == recorded_prefix:
        log.debug("%s: prefix %r means the tree of this run", path, prefix)
        return None
    trees = [name for name, item in record.items.items() if item == ITEM]
    if trees:
        raise PrefixError(
            f"{path} has no tree with the prefix {prefix!r}; its items that are trees: "
            f"{', '.join(trees)}. Leave prefix= out for the tree of the run"
        )
    text = printable(
        f"{path} has no tree with the prefix {prefix!r}; its only tree is restored instead. Leave "
        "out prefix= to avoid this warning"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=_TO_THE_CALLER)
    return None
