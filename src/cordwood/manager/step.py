"""A step of a run: an entry of its root with what is known of it, and the policies' view of it."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.formats.step_names import step_name
from cordwood.formats.step_record import Record
from cordwood.formats.tool_steps import CORDWOOD_SAVE
from cordwood.policies.saved_step import SavedStep
from cordwood.storage.locations import Location


class Fault(Enum):
    """The reason why the index of a step is of no use, in the words of messages."""

    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"  # files are missing that other roots should hold
    NEWER = "of a newer version"
    UNREAD = "it cannot be read"  # perhaps for a while only


class Step(NamedTuple):
    """An entry of the root that is named as a step: a directory or a file."""

    step: int
    entry: str  # its name in the root
    location: Location
    stamp: Hashable | None  # changes with its index; None: no save to it has finished
    record: Record | None = None  # None: not saved by a manager
    problem: str = ""  # why policies ignore it; "" if they do not
    format: str | None = None  # of a file, as `cordwood.load` takes it
    tool: str = ""  # the tool that saved it, unless a manager did
    is_link: bool = False  # a symbolic link
    foreign_metrics: SavedStep | None = None  # metrics that another tool has saved
    data_bytes: int | None = None  # the size of the data files of its index, also shared ones
    fault: Fault | None = None  # of its index, which `problem` explains

    def with_fault(self, fault: Fault, text: str) -> Step:
        """Return the step with a fault and an explanation of it."""
        return self._replace(problem=f"{fault.value}: {text}", fault=fault)

    @property
    def path(self) -> str:
        """Its path or URL as text, for messages and reports."""
        return str(self.location)

    @property
    def finished(self) -> bool:
        """True if there is a checkpoint, in whatever state."""
        return self.stamp is not None

    @property
    def identity(self) -> Hashable | None:
        """A value that changes when the step is saved again, but not when metrics are added."""
        return self.stamp if self.record is None else self.record.time

    @property
    def damaged(self) -> bool:
        """True if it is known to be damaged, or incomplete."""
        return self.finished and self.fault in (Fault.DAMAGED, Fault.INCOMPLETE)

    @property
    def whole(self) -> bool:
        """True if it is finished and not known to be damaged; perhaps a newer cordwood saved it."""
        return self.finished and not self.damaged

    @property
    def is_read(self) -> bool:
        """True if its index was read; False if the disk failed, perhaps for a while only."""
        return self.fault is not Fault.UNREAD

    @property
    def is_of_another_tool(self) -> bool:
        """True if cordwood did not write it: no manager deletes it."""
        return self.tool not in ("", CORDWOOD_SAVE)

    @property
    def removal_command(self) -> str:
        """The command that removes a step of any tool."""
        return shlex.join(["cordwood", "rm", self.path])

    @property
    def in_the_way(self) -> str:
        """The reason why a save cannot replace this entry; "" if it can."""
        if self.entry != step_name(self.step):
            return ""
        if self.tool:
            return f"it was saved by {self.tool}, and is not replaced: move it away"
        if self.is_link:
            return "it is a symbolic link, and is not written through: move it away"
        return ""

    @property
    def is_replaceable(self) -> bool:
        """True if a manager saved it here, and this version can save it again in its place."""
        at_home = self.entry == step_name(self.step) and not self.in_the_way
        return at_home and self.record is not None and self.record.step == self.step

    def require_known(self) -> None:
        """Raise an error unless this is the step that its name says.

        Raises:
            UnsupportedFormatError: a newer version saved it, so this version cannot know.
            CorruptionError: it has the record of another step.
        """
        if self.fault is Fault.NEWER:
            raise UnsupportedFormatError(f"{self.path}: step {self.step} is {self.problem}")
        if self.record is not None and self.record.step != self.step:
            raise CorruptionError(f"{self.path}: step {self.step} is {self.problem}")

    @property
    def counts(self) -> bool:
        """True if policies apply to it: a manager has saved it, and it has no problem."""
        return self.record is not None and not self.problem

    @property
    def saved(self) -> SavedStep | None:
        """The step as policies see it; None if they ignore it.

        A step of another tool that has metrics is compared with other steps, and never deleted.
        """
        if self.counts:
            assert self.record is not None
            return SavedStep(self.step, self.record.time, self.record.metrics)
        return self.foreign_metrics if self.whole else None

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics; {} if none were saved."""
        source = self.foreign_metrics if self.record is None else self.record
        return {} if source is None else dict(source.metrics)


def best_of_each(entries: Sequence[Step]) -> list[Step]:
    """Return the best entry of each step, by increasing number."""
    best: dict[int, Step] = {}
    for each in entries:
        if each.step not in best or rank(each) >= rank(best[each.step]):
            best[each.step] = each
    return list(best.values())


def rank(step: Step) -> tuple[bool, bool, bool]:
    """Return a value that is greater for the better one of two entries with one number."""
    return step.whole, step.counts, step.entry == step_name(step.step)
