"""The refusal to remove a version of weights that newer ones are made of."""

from __future__ import annotations

from cordwood.errors import StepError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.loading.stored_version import stored_version
from cordwood.storage.locations import Location
from cordwood.storage.open_step_storage import open_step_storage


def require_no_newer_version(location: Location) -> None:
    """Raise StepError if a delta beside a version of weights is made from that version."""
    step = step_in_name(location.name)
    if step is None or stored_version(location) is None:
        return
    storage = open_step_storage(location.parent, storage_of(DEFAULT).RULES)
    entries = storage.entries(lambda name: name == step_name(step_in_name(name) or 0))
    newer = sorted(int(name) for name, entry in entries.items() if entry.stamp is not None)
    following = next((each for each in newer if each > step), None)
    if following is None:
        return
    record = stored_version(storage.location_of(step_name(following)))
    if record is None or record.is_whole or record.base is None or record.base.step != step:
        return
    raise StepError(
        f"{location}: version {following} holds only what changes from this one: expected a "
        f"version that no newer one needs. Remove the newer ones first, the newest at first "
        f"({newer[-1]}); a WeightPublisher removes old ones by itself (keep=)"
    )
