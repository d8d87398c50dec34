"""The description of the package on PyPI: README.md, whose links lead to files on GitHub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_SOURCE = re.compile(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"')
_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)


def repository_url() -> str | None:
    """Return the address of the repository that builds, as GitHub's workflows say; else None."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else None


def description(readme: str, repository: str | None, version: str) -> str:
    """Return README.md for a page elsewhere, where its relative links would lead nowhere.

    Args:
        readme: the text of README.md.
        repository: the address of the repository on GitHub. None: links become plain text, and
            pictures are left out.
        version: the version, whose tag has the files.
    """
    if repository is None:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    text = _LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", readme)
    return _SOURCE.sub(rf'\1="{repository}/raw/v{version}/\2"', text)


class DescriptionHook(MetadataHookInterface):
    """The part of the metadata that hatchling asks for: the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(readme, repository_url(), metadata["version"]),
        }
