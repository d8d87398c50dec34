"""The data files of a step by its index: which save they are of, their names and their sizes."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress

from cordwood.encoding.digests import digest_of
from cordwood.errors import CordwoodError, FormatError
from cordwood.formats.format_protocol import FileWriter, StepFiles
from cordwood.formats.packs.cordwood_json import decode_index
from cordwood.formats.packs.file_names import PACK_NAME
from cordwood.formats.step_record import UNSHARED_KEY, is_unshared, record_in
from cordwood.message_text import counted, first_names

_MAX_SHOWN = 3
UNSHARED_ADVICE = (
    "restore it in a job whose processes pass the roots, by CheckpointManager(root, "
    "shared=False).restore(), or copy the data files of the other roots into this directory"
)


def read_step_files(index: bytes) -> StepFiles:
    """Return the data files that an index names. Raises as `decode_index`, without a name."""
    items = decode_index(index)
    sizes: dict[str, int] = {}
    saves = []
    for prefix, item in items.items():
        match item:
            case {"save_id": str(save_id), "files": list(rows)}:
                saves.append([prefix, save_id])
            case _:
                raise FormatError(f"items[{prefix!r:.80}]: expected a save_id and files")
        for row in rows:
            match row:
                case [str(name), int(size), *_]:
                    sizes[name.rpartition("/")[2]] = size
                case _:
                    raise FormatError(f"items[{prefix!r:.80}]: files: expected names and sizes")
    names = sorted(sizes)
    identity = digest_of(json.dumps([sorted(saves), names]).encode()).hex()
    main = items.get("", {})
    record = None
    with suppress(CordwoodError):  # a newer one's
        record = record_in(main.get("metadata"))
    return StepFiles(
        identity,
        0.0 if record is None else record.time,
        {name: sizes[name] for name in names},
    )


def writer_of(name: str) -> FileWriter | None:
    """Return the writer of a data file, by its name; None for another name."""
    match = PACK_NAME.fullmatch(name)
    return None if match is None else FileWriter(match["save"], int(match["process"]))


def missing_files_text(index: bytes, names: Collection[str]) -> str:
    """Return a sentence about the files of a step that lie in the roots of other processes.

    "" if none is missing, or if the step was saved into one root.

    Args:
        index: the index of the step.
        names: the files in its directory.
    """
    match decode_index(index).get(""):
        case {"metadata": dict(metadata)}:
            pass
        case _:
            return ""
    if not is_unshared(metadata):
        return ""
    files = read_step_files(index).sizes
    missing = [name for name in files if name not in names]
    if not missing:
        return ""
    processes = sorted({each.process for each in map(writer_of, missing) if each is not None})
    whose = f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"
    return (
        f"{len(missing)} of its {counted(len(files), 'file')} are not here: it was saved with "
        f"shared=False by {metadata[UNSHARED_KEY]} processes, each into a root of its own; those "
        f"of {whose} are missing: {first_names(missing, _MAX_SHOWN)}"
    )
