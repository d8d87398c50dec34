"""The matrix of docs/orbax-versions.md: python -m tests.orbax_versions [orbax-VERSION ...].

cordwood writes all cases, each version of Orbax reads them in an environment of its own, and the
page is written with the outcomes. Ends with status 1 if one of them is not documented.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from tests.orbax_versions.page import page_with_tables, undocumented
from tests.tool_environments import ROOT, make_environment, requirements_by_name, run_module

FOLDER = Path(__file__).parent
BUILD = ROOT / "build" / "orbax-versions"
CASES = BUILD / "cases"
PAGE = ROOT / "docs" / "orbax-versions.md"


def main(names: list[str]) -> int:
    from tests.orbax_versions.trees import GROUPS, TREES
    from tests.orbax_versions.write import refusals, write_cases

    shutil.rmtree(CASES, ignore_errors=True)
    write_cases(CASES, [*TREES, *GROUPS])
    environments = requirements_by_name(FOLDER / "environments.txt")
    for name in names or environments:
        python = make_environment(BUILD / name, environments[name])
        report = BUILD / f"{name}.json"
        for module in ("read", "read_together"):
            run_module(python, f"tests.orbax_versions.{module}", str(CASES), str(report))
    reports = {name: BUILD / f"{name}.json" for name in environments}
    outcomes = {name: json.loads(report.read_text()) for name, report in reports.items()}
    PAGE.write_text(page_with_tables(PAGE.read_text(), outcomes, refusals()))
    problems = undocumented(outcomes)
    print("\n".join(problems) or "all outcomes are documented")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
