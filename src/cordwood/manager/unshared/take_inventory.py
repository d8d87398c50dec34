"""The inventory of a root: which files of which steps lie there."""

from __future__ import annotations

from cordwood.errors import CordwoodError
from cordwood.formats.load_format import step_files_of, storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.manager.step import Step
from cordwood.plan.recovery.position_runs import runs_of
from cordwood.plan.recovery.step_inventory import StepInventory
from cordwood.storage.directories import file_sizes
from cordwood.storage.locations import Location
from cordwood.storage.step_storage import StepStorage
from cordwood.threads.log import log


def take_inventory(root: StepStorage) -> list[StepInventory]:
    """Return the steps of the root of this process, each with the files that are there.

    A step whose index cannot be read counts for nothing, and a line is logged.
    """
    inventory = []
    for entry, each in root.entries(_is_step).items():
        number = step_in_name(entry)
        if each.stamp is None or number is None:
            continue
        location = root.location_of(entry)
        try:
            step = _step_at(location, number)
        except (CordwoodError, OSError) as e:
            log.warning("%s: this part of step %d counts for nothing: %s", location, number, e)
            continue
        if step is not None:
            inventory.append(step)
    return inventory


def mirrored_step(step: Step) -> StepInventory | None:
    """Return the inventory of a whole step of a mirror. Raises CordwoodError, OSError."""
    index = storage_of(DEFAULT).store_at(step.location).read_index()
    if index is None:
        return None
    files = step_files_of(DEFAULT).read_step_files(index)
    count = len(files.sizes)
    return StepInventory(step.step, files.save, files.saved_at, count, runs_of(range(count)))


def _is_step(name: str) -> bool:
    number = step_in_name(name)
    return number is not None and name == step_name(number)


def _step_at(location: Location, number: int) -> StepInventory | None:
    index = storage_of(DEFAULT).store_at(location).read_index()
    if index is None:
        return None
    files = step_files_of(DEFAULT).read_step_files(index)
    sizes = file_sizes(str(location))
    whole = [i for i, (name, size) in enumerate(files.sizes.items()) if sizes.get(name) == size]
    return StepInventory(number, files.save, files.saved_at, len(files.sizes), runs_of(whole))
