"""The problems of matching a stored tree with `like`, and the one error that names them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cordwood.errors import MismatchError
from cordwood.message_text import counted, first_lines

MAX_LINES = 50


class Problem(NamedTuple):
    """One line of an error, with the name of the leaf or container that it is about."""

    name: Any
    text: str


def mismatch_error(
    problems: Sequence[str], name: str, advice: str = "", *, first: str = ""
) -> MismatchError:
    """Return the error that lists all problems, between the first line and the advice."""
    count = counted(len(problems), "leaf", "leaves")
    verb = "do" if len(problems) > 1 else "does"
    text = first_lines(problems, MAX_LINES)
    error = MismatchError(f"{count} of {name} {verb} not fit `like`:\n{first}{text}{advice}")
    error.problems = tuple(problems)
    return error


def merge_problems(problems: Sequence[Problem], covering: Sequence[Problem]) -> list[Problem]:
    """Return the problems; each covering problem replaces those in its subtree."""
    over = {problem.name: problem for problem in covering}
    kept: dict[Any, Problem] = {}
    for i, problem in enumerate(problems):
        prefixes = [problem.name[:stop] for stop in range(len(problem.name) + 1)]
        cover = next((over[prefix] for prefix in prefixes if prefix in over), None)
        if cover is None:
            kept[i] = problem
        else:
            kept.setdefault((cover.name,), cover)
    return list(kept.values())
