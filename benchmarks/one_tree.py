"""The common part of the benchmarks of one tree: options, tree, and writing the page."""

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
    """Measure according to the command line, and print the page. Write it if the tree is GPT-2.

    Args:
        measure: makes the page from a function for the tree, an empty folder, and the rounds.
        description: the text about the benchmark; its first line is shown with the options.
        output: the file for the page, unless the command line names another.
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
