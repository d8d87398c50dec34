"""Scenarios of a group that writes what Orbax reads, on the devices of all its processes."""

from __future__ import annotations

from pathlib import Path

import jax

from cordwood.compat.orbax import StandardCheckpointer
from tests.orbax_versions.trees import spread
from tests.orbax_versions.write import write_case


def write(folder: str) -> None:
    write_case(Path(folder), spread(jax.process_count()))


def replace(path: str) -> None:
    with StandardCheckpointer() as checkpointer:
        checkpointer.save(path, spread(jax.process_count()), force=True)
