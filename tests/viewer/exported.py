"""The resources in a file that `cordwood view --export` has written."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

__all__ = ["exported_resources"]


class _Elements(HTMLParser):
    """The JSON elements of an exported page; all elements by name."""

    def __init__(self) -> None:
        super().__init__()
        self.resources: dict[str, Any] = {}
        self.tags: list[str] = []
        self._name: str | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._name = dict(attrs).get("data-resource")
        self._text = []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._name is not None:
            self.resources[self._name] = json.loads("".join(self._text))
        self._name = None


def exported_resources(html: str) -> dict[str, Any]:
    """Return the resources in an exported page; fail if it would ask another host for anything."""
    parser = _Elements()
    parser.feed(html)
    assert "connect-src &#39;none&#39;" in html
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=(?!\"data:)", html)
    return parser.resources
