"""The scenario of a group that writes a case for Orbax, on the devices of all its processes."""

from __future__ import annotations

from pathlib import Path

import jax

from tests.orbax_versions.trees import spread
from tests.orbax_versions.write import write_case


def write(folder: str) -> None:
    write_case(Path(folder), spread(jax.process_count()))
