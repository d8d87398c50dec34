"""What the benchmarks of one tree share: their options, the tree, and what becomes of the page."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["MakeTree", "write_page"]

MakeTree: TypeAlias = Callable[[], Any]


def write_page(
    measure: Callable[[MakeTree, Path, int], str], *, description: str, output: Path
) -> None:
    """Measure as the command line says, and print the page; that of GPT-2 is written, too.

    Args:
        measure: makes the page, given what makes the tree, an empty folder, and how many rounds.
        description: of the benchmark; its first line is shown with the options.
        output: where the page goes, unless the command line says otherwise.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--tree", choices=["gpt2", "smoke"], default="gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()

    from benchmarks.directory_trees import smoke
    from benchmarks.trees import gpt2_adam

    make = smoke if options.tree == "smoke" else gpt2_adam
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="cordwood-bench-") as folder:
        page = measure(make, Path(folder), options.rounds)
    if options.tree == "gpt2":
        options.output.write_text(page)
    print(page)
