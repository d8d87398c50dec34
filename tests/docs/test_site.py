"""The built documentation site: every public name is documented, and pages look right in Chromium.

The build is strict: each warning, such as that of a broken link, is an error. Screenshots are kept
in build/screenshots.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

from tests.browser import Browser, chromium
from tests.contract import PUBLIC_MODULES
from tests.docs.built_site import built_site, served_site
from tests.test_public_names import NAMES

PAGES = {
    "front": "docs/README.html",
    "concepts": "docs/concepts.html",
    "api": "docs/reference/cordwood.html",
    "how_to": "docs/how-to/orbax.html",
    "command": "docs/cli.html",
    "benchmark": "benchmarks/directory.html",
    "search": "search.html?q=restore",
}
WIDTHS = {"phone": (390, 844), "desktop": (1400, 1000)}


class _Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for value in (values.get("id"), values.get("name")) if value}
        names = {"a": "href", "link": "href", "img": "src", "script": "src"}
        target = values.get(names.get(tag, ""))
        if target:
            self.links.append(target)


def test_the_reference_documents_every_public_name() -> None:
    from api_reference import documented_names

    inventory = InventoryFile.loads((built_site() / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data.values() for name in kind}
    assert documented >= PUBLIC_MODULES
    for module, name in NAMES:
        public = documented_names()[name]
        if not inspect.ismodule(public.value):
            assert public.path in documented, f"{module}.{name}"


def test_the_members_of_public_classes_have_docstrings() -> None:
    """The reference shows the members that have one."""
    from api_reference import documented_names

    for public in documented_names().values():
        if inspect.isclass(public.value):
            for name, member in vars(public.value).items():
                if name == "__getitem__" or not name.startswith("_"):
                    is_code = inspect.isroutine(member) or isinstance(member, property)
                    assert not is_code or inspect.getdoc(getattr(public.value, name)), name


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_public_name_is_the_same_object_everywhere(module: str, name: str) -> None:
    """So the reference documents a name of several modules once."""
    import importlib

    from api_reference import documented_names

    assert getattr(importlib.import_module(module), name) is documented_names()[name].value


def test_each_local_link_leads_somewhere() -> None:
    site = built_site()
    pages = {page: _Links(page) for page in sorted(site.rglob("*.html"))}
    broken = []
    for page, content in pages.items():
        for link in content.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            anchors = {"", "top", *pages[path].anchors} if path in pages else {anchor}
            if not path.exists() or anchor not in anchors:
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken, broken


def test_no_page_loads_anything_from_another_host() -> None:
    for page in built_site().rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<(?:script|img|iframe)[^>]*\bsrc=.(?:https?:)?//", text), page
        assert not re.search(r"<link[^>]*rel=.stylesheet.[^>]*href=.(?:https?:)?//", text), page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served_site() as url:
        yield url


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_chromium(
    name: str, width: str, theme: str, browser: Browser, address: str
) -> None:
    browser.size(*WIDTHS[width])
    browser.theme(theme)
    browser.driver.get(f"{address}/{PAGES[name]}")
    if name == "search":
        browser.find("#search-results li a")
    browser.wait("return document.readyState === 'complete'")
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3]))
    assert (brightness > 384) == (theme == "light")
    browser.wait_for_fit()
    assert browser.console() == []
    browser.screenshot(f"site_{name}_{width}_{theme}", full=False)


def test_the_front_page_leads_to_the_answer_of_a_search(browser: Browser, address: str) -> None:
    browser.size(*WIDTHS["desktop"])
    browser.driver.get(f"{address}/index.html")
    browser.wait("return location.pathname.endsWith('/docs/README.html')")
    field: Any = browser.find("input.sidebar-search")
    field.send_keys("NFS\n")
    browser.click("#search-results li a", "File systems")
    browser.wait_text("Which file systems are safe", "h2")
    assert browser.console() == []
