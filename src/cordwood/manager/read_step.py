"""The reading of a step from the index in its directory."""

from __future__ import annotations

from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.cordwood_json import data_bytes_of, decode_index
from cordwood.formats.packs.packs_storage import RULES, store_at
from cordwood.formats.step_record import KEY, decode_record, wrong_step
from cordwood.formats.tool_steps import CORDWOOD_SAVE
from cordwood.manager.step import Fault, Step


def read_step(step: Step) -> Step:
    """Return a step with what its index says of it: its record, its size, or its problem."""
    try:
        data = store_at(step.location).read_index()
        if data is None:  # it has just been deleted
            return step._replace(stamp=None)
        items = decode_index(data)
        step = step._replace(data_bytes=data_bytes_of(items))
        item = items.get("")
        metadata = item.get("metadata") if type(item) is dict else None
        text = metadata.get(KEY) if type(metadata) is dict else None
        if type(text) is not str:
            return step._replace(problem=f"saved by {CORDWOOD_SAVE}", tool=CORDWOOD_SAVE)
        return with_record(step, text)
    except OSError as e:  # perhaps for a while only: it is read again the next time
        return step.with_fault(Fault.UNREAD, str(e))._replace(stamp=object())
    except UnsupportedFormatError as e:  # it is not damaged
        return step.with_fault(Fault.NEWER, str(e))
    except (CorruptionError, FormatError) as e:
        return step.with_fault(Fault.DAMAGED, str(e).splitlines()[0])


def with_record(step: Step, text: str) -> Step:
    """Return a step with its record, from its text. Raises as `decode_record`."""
    record = decode_record(text, f"{step.path}/{RULES.index_name}: {KEY}")
    step = step._replace(record=record, problem="")
    if record.step == step.step:
        return step
    return step.with_fault(Fault.DAMAGED, wrong_step(record, step.entry))
