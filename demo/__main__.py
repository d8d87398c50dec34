"""The program of `make demo`: real weights beside the peers, and a killed run that resumes."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console

from demo.inspecting import show_steps
from demo.resuming import show_resuming
from demo.weights import show_weights


def main() -> None:
    console = Console()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="cordwood-demo-") as folder:
        show_weights(console, Path(folder))
        runs = show_resuming(console, Path(folder))
        show_steps(console, Path(folder), runs)
    console.print(f"\nDone in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
