"""The pictures that pages show with `<picture>`, copied to the same places in the site."""

from __future__ import annotations

import shutil

from sphinx.application import Sphinx

FOLDERS = ["benchmarks/charts", "docs/pictures"]


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Copy the folders of pictures, if the build has succeeded."""
    for folder in FOLDERS:
        source = app.srcdir / folder
        if error is None and source.is_dir():
            shutil.copytree(source, app.outdir / folder, dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the copying to the end of the build."""
    app.connect("build-finished", copy_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
