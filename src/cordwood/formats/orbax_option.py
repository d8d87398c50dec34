"""The option `orbax=`: a directory of packs that Orbax reads too."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.step_record import ORBAX_KEY
from cordwood.formats.table import PACKS, Format
from cordwood.storage.locations import Location, Url


def with_orbax(
    metadata: Mapping[str, str] | None,
    orbax: bool | str,
    format: Format,
    location: Location,
    *,
    item: str,
) -> Mapping[str, str]:
    """Return the metadata of a save, which says whether there is an index for Orbax.

    Args:
        metadata: the caller's strings.
        orbax: the option: True, False or the name of an item.
        format: the format of the save.
        location: its destination, for errors.
        item: the name of the item for True; "": the checkpoint itself is the tree.

    Raises TypeError and ValueError for an option that is no such value, or does not fit the format,
    and UnsupportedFormatError for a URL.
    """
    strings: Mapping[str, str] = {} if metadata is None else metadata
    if orbax is False:
        return strings
    if orbax is not True and (type(orbax) is not str or not orbax):
        raise TypeError(f"orbax: expected True, False or the name of an item, found {orbax!r:.80}")
    if format is not PACKS:
        raise ValueError(
            f"{location}: orbax= is for directories of packs; this is {format.description}. "
            'format="orbax" writes a checkpoint for Orbax alone'
        )
    if isinstance(location, Url):
        raise UnsupportedFormatError(
            f"{location}: orbax= needs links, which object stores lack; save without it, and "
            f"{conversion_to_disk(location, item=item)}"
        )
    return {**strings, ORBAX_KEY: item if orbax is True else orbax}


def conversion_to_disk(location: Url, *, item: str) -> str:
    """Return the advice to convert what is in a store; `item` is not "" for the steps of a run."""
    source, destination = (f"{location}/STEP", f"run/STEP/{item}") if item else (location, "copy")
    return (
        "write checkpoints for Orbax to a disk from there: "
        f'cordwood.convert("{source}", "{destination}", format="orbax")'
    )
