"""The tables of docs/orbax-versions.md: the outcomes of all restores, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tests.orbax_versions.outcomes_text import ABSENT, EQUAL, EQUAL_DATA
from tests.orbax_versions.read_together import READERS
from tests.orbax_versions.trees import GROUPS, TREES

BEGIN, END = "<!-- written by make orbax-versions -->\n", "<!-- end -->"

Outcomes = Mapping[str, Mapping[str, Mapping[str, str]]]  # environment, tree, door


class Note(NamedTuple):
    """An outcome that is not `equal`, and its explanation; the first three are patterns."""

    environments: str
    trees: str
    outcome: str
    text: str


NOTES = [
    Note(
        r"orbax-.*",
        "strings",
        r"as Orbax: ValueError: Unsupported type: <class 'str'>",
        "`StandardCheckpointer`, and `StandardRestore` with a target, take no strings in a target. "
        "Orbax's own checkpoint of the tree fails in the same way.",
    ),
    Note(
        r"orbax-0\.6\.0",
        "PRNG keys",
        r"ValueError: (cannot reshape array|sharding passed to deserialization)",
        "Orbax 0.6.0 knows no PRNG keys, and restores their key data only with a target of uint32.",
    ),
    Note(
        r"orbax-0\.11\.20",
        "PRNG keys",
        r"(as Orbax: )?TypeError: Cannot interpret 'key<",
        "Version 1 of 0.11.20 takes no keys in a target, also for its own checkpoints.",
    ),
]


def page_with_tables(page: str, outcomes: Outcomes, refusals: Mapping[str, str]) -> str:
    """Return a page with its tables made anew."""
    head, _, remainder = page.partition(BEGIN)
    _, _, tail = remainder.partition(END)
    return f"{head}{BEGIN}\n{tables(outcomes, refusals)}\n{END}{tail}"


def tables(outcomes: Outcomes, refusals: Mapping[str, str]) -> str:
    versions = [name.rpartition("-")[2] for name in outcomes]
    rows = []
    for tree in (*TREES, *GROUPS, *READERS):
        cells = [_cell(name, tree, outcomes[name].get(tree, {})) for name in outcomes]
        rows.append([tree, *cells])
    notes = [f"{number}. {note.text}" for number, note in enumerate(NOTES, 1)]
    refused = [[name, f"`{message}`"] for name, message in refusals.items()]
    return "\n\n".join(
        [
            _table(["tree", *[f"Orbax {version}" for version in versions]], rows),
            "\n".join(notes),
            _table(["tree", "the error of the save"], refused),
            "",
        ]
    )


def undocumented(outcomes: Outcomes) -> list[str]:
    """Return a line for each outcome that is neither equal nor explained by a note."""
    return [
        f"{environment}, {tree}, {door}: {outcome}"
        for environment, trees in outcomes.items()
        for tree, doors in trees.items()
        for door, outcome in doors.items()
        if not _is_equal(outcome) and _note_of(environment, tree, outcome) is None
    ]


def _is_equal(outcome: str) -> bool:
    return outcome in (EQUAL, EQUAL_DATA, ABSENT)


def _cell(environment: str, tree: str, doors: Mapping[str, str]) -> str:
    """Return how many restores are equal, of how many, and the numbers of notes."""
    tried = {door: outcome for door, outcome in doors.items() if outcome != ABSENT}
    equal = sum(map(_is_equal, tried.values()))
    numbers = {_note_of(environment, tree, outcome) for outcome in tried.values()} - {None}
    marks = ", ".join(f"note {number}" for number in sorted(n for n in numbers if n))
    return f"{equal} of {len(tried)}" + (f" ({marks})" if marks else "")


def _note_of(environment: str, tree: str, outcome: str) -> int | None:
    for number, note in enumerate(NOTES, 1):
        if (
            re.fullmatch(note.environments, environment)
            and re.fullmatch(note.trees, tree)
            and re.match(note.outcome, outcome)
        ):
            return number
    return None


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
