"""The program that makes every mistake and writes docs/mistakes.md.

    python -m demo.mistakes [LIBRARY ...]

Without names it runs all libraries. Otherwise the records of the other libraries are kept. With
--print before a name it prints the outcomes and records nothing.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from demo.mistakes.attempt import outcome
from demo.mistakes.catalogue import MISTAKES
from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import Outcome
from demo.mistakes.page import Record, cut, read_record, write_record


def outcomes_of(names: Sequence[str]) -> dict[str, dict[str, Outcome]]:
    """Return the outcomes, by mistake and library."""
    outcomes: dict[str, dict[str, Outcome]] = {mistake.title: {} for mistake in MISTAKES}
    for mistake in MISTAKES:
        for name in names:
            # Orbax may still write there, although its save has failed.
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                outcomes[mistake.title][name] = cut(outcome(mistake, name, Path(folder).resolve()))
                Path(folder).chmod(0o700)
    return outcomes


def main(arguments: Sequence[str]) -> None:
    logging.disable()  # Orbax's log is not part of its errors
    if arguments[:1] == ["--print"]:
        sys.stdout.write("\n" + json.dumps(outcomes_of(arguments[1:])) + "\n")
        return
    names = list(arguments) or list(LIBRARIES)
    record = read_record()
    if len(names) == len(LIBRARIES):
        record = Record({"jax": version("jax")}, {})
    outcomes_by_title = outcomes_of(names)
    outcomes = {
        title: {**record.outcomes.get(title, {}), **row} for title, row in outcomes_by_title.items()
    }
    versions = {**record.versions, **{name: LIBRARIES[name].version for name in names}}
    write_record(Record(versions, outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # Orbax leaves threads that wait for a failed save
