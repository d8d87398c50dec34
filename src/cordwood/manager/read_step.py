"""The reading of a step from the index in its directory."""

from __future__ import annotations

from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.load_format import records_of, step_files_of, storage_of
from cordwood.formats.step_record import KEY, decode_record, wrong_step
from cordwood.formats.table import DEFAULT
from cordwood.formats.tool_steps import CORDWOOD_SAVE, VERSION
from cordwood.manager.step import Fault, Step
from cordwood.storage.locations import Location, Url


def read_step(step: Step) -> Step:
    """Return a step with what its index says of it: its record, its size, or its problem."""
    try:
        data = storage_of(DEFAULT).store_at(step.location).read_index()
        if data is None:  # it has just been deleted
            return step._replace(stamp=None)
        index = records_of(DEFAULT).read_step_index(data)
        step = step._replace(data_bytes=index.data_bytes)
        if index.record_text is None:
            problem = VERSION if index.is_version else f"saved by {CORDWOOD_SAVE}"
            return step._replace(problem=problem, tool=CORDWOOD_SAVE)
        step = with_record(step, index.record_text)
        missing = _missing_files(data, step.location) if index.is_unshared else ""
        return step.with_fault(Fault.INCOMPLETE, missing) if missing else step
    except OSError as e:  # perhaps for a while only: it is read again the next time
        return step.with_fault(Fault.UNREAD, str(e))._replace(stamp=object())
    except UnsupportedFormatError as e:  # it is not damaged
        return step.with_fault(Fault.NEWER, str(e))
    except (CorruptionError, FormatError) as e:
        return step.with_fault(Fault.DAMAGED, str(e).splitlines()[0])


def _missing_files(index: bytes, location: Location) -> str:
    """Return a sentence about the files of a step that are in other roots; "" if none is."""
    if isinstance(location, Url) or location.held is not None:
        return ""
    names = storage_of(DEFAULT).store_at(location).names()
    return step_files_of(DEFAULT).missing_files_text(index, names)


def with_record(step: Step, text: str) -> Step:
    """Return a step with its record, from its text. Raises as `decode_record`."""
    record = decode_record(text, f"{step.path}/{DEFAULT.index_name}: {KEY}")
    step = step._replace(record=record, problem="")
    if record.step == step.step:
        return step
    return step.with_fault(Fault.DAMAGED, wrong_step(record, step.entry))
