"""The life of the server: it starts, a browser opens its page, and Ctrl-C ends it."""

from __future__ import annotations

import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable

from cordwood.viewer.page import Page
from cordwood.viewer.resources import Resources
from cordwood.viewer.server import ViewerServer

_POLL_SECONDS = 0.1
_SLEEP_SECONDS = 3600.0


def serve(
    page: Page,
    resources: Resources,
    *,
    port: int,
    browser: bool,
    announce: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C, which returns.

    Args:
        page: the page.
        resources: its resources.
        port: the port; 0 for any free one.
        browser: open the page in a browser, if there is a screen.
        announce: called with the address once the server listens.

    Raises OSError if the port is in use.
    """
    with ViewerServer(page, resources, port=port) as server:
        loop = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        loop.start()
        try:
            announce(server.url)
            if browser and _has_screen():
                # In a thread: some browsers run until their window is closed.
                threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            # This thread only sleeps: Ctrl-C cannot strike while the server handles a request.
            while loop.is_alive():
                time.sleep(_SLEEP_SECONDS)
        except KeyboardInterrupt:
            pass
        finally:
            server.shutdown()


def _has_screen() -> bool:
    """Return True if a browser can open a window; a browser for terminals would take this one."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)
