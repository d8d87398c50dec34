"""The browser that the tests of the viewer share, and the fixture that runs the command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, chromium
from tests.cli.conftest import run  # noqa: F401


@pytest.fixture(scope="session")
def one_chromium() -> Iterator[Browser]:
    """Start one Chromium for all tests of a worker."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(one_chromium: Browser) -> Iterator[Browser]:
    """Give a window of the usual size; its console must have no error and no warning."""
    one_chromium.size(1280, 900)
    one_chromium.theme("light")
    one_chromium.console()
    with one_chromium.visit():
        yield one_chromium
    assert one_chromium.console() == []
