"""The warning after a copy of a delta without the versions that its tree is made of."""

from __future__ import annotations

from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.loading.stored_version import stored_version
from cordwood.storage.locations import Location
from cordwood.threads.log import log


def warn_of_delta(source: Location, destination: Location) -> None:
    """Log a warning if a copy is a published delta that cannot be loaded where it is now."""
    record = stored_version(destination)
    if record is None or record.is_whole or record.base is None or record.base.step is None:
        return
    base = record.base.step
    number = step_in_name(destination.name)
    if number is not None and number > base:
        beside = storage_of(DEFAULT).store_at(destination.parent.child(step_name(base)))
        if beside.read_index() is not None:
            return
    log.warning(
        "%s is a delta: it holds the changes of version %d alone, and is not loaded without that "
        "version and those that it is made of beside it, each under its number. "
        "cordwood.save(PATH, cordwood.load(%r)) stores the tree whole",
        destination,
        base,
        str(source),
    )
