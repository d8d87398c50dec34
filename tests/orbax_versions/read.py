"""The program of an environment: restore all cases of a folder, and write the outcomes as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


def main(folder: Path, report: Path) -> None:
    from tests.orbax_versions.outcomes import outcomes_of

    cases = sorted(each for each in folder.iterdir() if each.is_dir())
    report.write_text(json.dumps({case.name: outcomes_of(case) for case in cases}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
