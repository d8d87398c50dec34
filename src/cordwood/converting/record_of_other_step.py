"""The record of another step, which a conversion leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.step_names import number_in_name
from cordwood.formats.step_record import KEY, ORBAX_KEY, PREFIX_KEY, UNSHARED_KEY, decode_record
from cordwood.formats.table import EXPORTS, Format
from cordwood.storage.locations import Location
from cordwood.storage.paths import last_name
from cordwood.threads.log import log


def without_other_steps_record(
    strings: Mapping[str, str],
    destination: Location,
    format: Format,
    *,
    source: str,
) -> Mapping[str, str]:
    """Return the strings beside a tree, without a manager's record of another step.

    A record holds the metrics, extras and states of its step. Under the name of another step they
    would be taken for the metrics of that step. The record stays if the destination has the same
    number, or no step number as its name. A directory for the hub never has a record, because
    others read it, and neither has a checkpoint of Orbax. An index for Orbax is not carried over
    either, nor that the files lay in several roots.
    """
    dropped = ORBAX_KEY, UNSHARED_KEY
    strings = {name: value for name, value in strings.items() if name not in dropped}
    if format in EXPORTS:
        return {name: value for name, value in strings.items() if name not in (KEY, PREFIX_KEY)}
    number = number_in_name(last_name(str(destination)))
    if KEY not in strings or number is None:
        return strings
    step = None
    with suppress(CordwoodError):
        step = decode_record(strings[KEY], source).step
    if step == number:
        return strings
    log.warning(
        "%s: the metrics, extras and states of %s are left out, for they are not those of step %d; "
        "trees are copied",
        str(destination),
        source if step is None else f"step {step}",
        number,
    )
    return {name: value for name, value in strings.items() if name != KEY}
