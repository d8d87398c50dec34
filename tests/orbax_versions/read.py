"""The program of an environment: restore all cases of a folder, and write the outcomes as JSON.

python -m tests.orbax_versions.read FOLDER REPORT [DOOR ...]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


def main(folder: Path, report: Path, doors: list[str]) -> None:
    """Restore by all doors, or by some, whose outcomes are replaced in the report."""
    from tests.orbax_versions.outcomes import outcomes_of

    outcomes = json.loads(report.read_text()) if doors else {}
    for case in sorted(each for each in folder.iterdir() if each.is_dir()):
        outcomes[case.name] = {**outcomes.get(case.name, {}), **outcomes_of(case, doors)}
    report.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
