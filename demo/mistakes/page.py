"""The page docs/mistakes.md, made from the recorded outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from demo.mistakes.catalogue import CHAPTERS
from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import NOT_ASKED, Mistake, Outcome

__all__ = [
    "PAGE",
    "Record",
    "StoreMistake",
    "as_markdown",
    "cut",
    "read_record",
    "read_store_mistakes",
    "write_record",
    "write_store_mistakes",
]

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "mistakes.md"
_RECORD = Path(__file__).parent / "outcomes.json"
_STORES = Path(__file__).parent / "stores.json"
_MAX_LINES, _MAX_COLUMNS = 10, 320

_HEAD = """# Common mistakes and their error messages

This page makes each mistake with cordwood, Orbax, Flax and equinox, and shows the error message of
each library, word for word. Paths are shown without their directory. `…` stands for the rest of a
long message, or for text that differs in every run. `from` introduces the cause of an error, which
Python prints above it. "No error" means that the call succeeded; the text after it says what it
returned.

`python -m demo.mistakes` makes all mistakes and writes this page. Tests compare the page with the
messages of cordwood, and with those of the other libraries if the versions below are installed.
With other versions they compare only the classes of the errors.

"""

_STORES_HEAD = """## Object stores

These mistakes were made with cordwood only, against an S3 server at http://127.0.0.1:9000. Each
message arrives within 10 seconds. [`cordwood doctor s3://bucket/run`](how-to/object-stores.md)
says the same before a job starts. `python -m tests.docs.store_mistakes` makes them again.
"""


class StoreMistake(NamedTuple):
    """A mistake with an object store, and what cordwood raises; or, without an error, logs."""

    title: str
    how: str
    error: str  # the name of its class; "" without an error
    text: str


class Record(NamedTuple):
    """The outcomes of all libraries, by title of the mistake and name of the library."""

    versions: Mapping[str, str]
    outcomes: Mapping[str, Mapping[str, Outcome]]


def read_record() -> Record:
    """Return the last record."""
    record = json.loads(_RECORD.read_text())
    outcomes = {
        title: {name: Outcome(*outcome) for name, outcome in row.items()}
        for title, row in record["outcomes"].items()
    }
    return Record(record["versions"], outcomes)


def write_record(record: Record) -> None:
    """Write the record and the page."""
    text = json.dumps(record._asdict(), indent=1, ensure_ascii=False)
    _RECORD.write_text(text + "\n")
    PAGE.write_text(as_markdown(record))


def read_store_mistakes() -> list[StoreMistake]:
    """Return the last record of the mistakes with object stores."""
    return [StoreMistake(*each) for each in json.loads(_STORES.read_text())]


def write_store_mistakes(mistakes: Sequence[StoreMistake]) -> None:
    """Write the record of the mistakes with object stores."""
    _STORES.write_text(json.dumps(mistakes, indent=1, ensure_ascii=False) + "\n")


def cut(outcome: Outcome) -> Outcome:
    """Return an outcome as printed: a long message is cut off."""
    lines = outcome.text.split("\n")
    shown = [
        line if len(line) <= _MAX_COLUMNS else f"{line[:_MAX_COLUMNS]}…"
        for line in lines[:_MAX_LINES]
    ]
    if len(lines) > _MAX_LINES:
        shown.append(f"… {len(lines) - _MAX_LINES} lines more")
    return Outcome(outcome.error, "\n".join(shown))


def as_markdown(record: Record) -> str:
    """Return the whole page."""
    lines = _HEAD.splitlines()
    for name, library in LIBRARIES.items():
        lines.append(f"- {library.title} {record.versions[name]}: {library.calls}")
    lines.append(f"- jax {record.versions['jax']}")
    titles = " | ".join(library.title for library in LIBRARIES.values())
    lines += ["", f"| mistake | {titles} |", "|---" * (1 + len(LIBRARIES)) + "|"]
    for mistake in [each for chapter in CHAPTERS.values() for each in chapter]:
        cells = [_cell(record.outcomes[mistake.title][name]) for name in LIBRARIES]
        lines.append(f"| [{mistake.title}](#{_anchor(mistake.title)}) | {' | '.join(cells)} |")
    for chapter, mistakes in CHAPTERS.items():
        lines += ["", f"## {chapter}"]
        for mistake in mistakes:
            lines += ["", *_section(mistake, record.outcomes[mistake.title])]
    lines += ["", *_STORES_HEAD.splitlines()]
    for each in read_store_mistakes():
        lines += ["", f"### {each.title}", "", f"{each.how[:1].upper()}{each.how[1:]}.", ""]
        lines += ["```text", f"{each.error or 'no error'}: {each.text}", "```"]
    return "\n".join(lines) + "\n"


def _cell(outcome: Outcome) -> str:
    if outcome.error == NOT_ASKED:
        return NOT_ASKED
    return f"`{outcome.error}`" if outcome.error else "no error"


def _section(mistake: Mistake, row: Mapping[str, Outcome]) -> list[str]:
    tried = {name: row[name] for name in LIBRARIES if row[name].error != NOT_ASKED}
    lines = [f"### {mistake.title}", "", f"{mistake.how[:1].upper()}{mistake.how[1:]}.", ""]
    for name in [name for name in LIBRARIES if name not in tried]:
        lines += [f"{LIBRARIES[name].title} {row[name].text}.", ""]
    lines.append("```text")
    for i, (name, outcome) in enumerate(tried.items()):
        what = outcome.error or "no error"
        lines += [*[""][: min(i, 1)], f"{LIBRARIES[name].title}: {what}: {outcome.text}"]
    return [*lines, "```"]


def _anchor(title: str) -> str:
    """Return GitHub's anchor of a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")
