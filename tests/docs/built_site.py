"""The documentation site, built as `make docs` builds it, and a server for it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.children import SRC

ROOT = SRC.parent
SITE = ROOT / "build" / "docs"
_SOURCES = ("docs", "src/cordwood", "benchmarks", "examples")
_SUFFIXES = {".md", ".py", ".svg", ".css", ".html"}


def built_site() -> Path:
    """Return the folder of the site; build it, strictly, if a source is newer."""
    SITE.parent.mkdir(exist_ok=True)
    with open(SITE.parent / "docs.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test workers, one builds
        if not _is_current():
            _build()
    return SITE


def _is_current() -> bool:
    """Return True if the last file that a build writes is newer than all sources."""
    last = SITE / "searchindex.js"
    if not last.exists():
        return False
    files = [file for folder in _SOURCES for file in (ROOT / folder).rglob("*.*")]
    files += ROOT.glob("*.md")
    newest = max(file.stat().st_mtime for file in files if file.suffix in _SUFFIXES)
    return newest < last.stat().st_mtime


def _build() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    makefile = (ROOT / "Makefile").read_text()
    recipe = next(line for line in makefile.splitlines() if "-m sphinx" in line)
    arguments = recipe.split("-m sphinx", 1)[1].split()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def served_site() -> Iterator[str]:
    """Serve the site on this machine, and yield its address."""
    handler = functools.partial(_QuietHandler, directory=str(built_site()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
