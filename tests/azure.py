"""The tests of object stores on Azurite, Microsoft's emulator of Azure Blob Storage, on loopback.

`make azure` runs it. Azurite is a program of Node.js: `npm install --global azurite`.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.real_servers import run_tests, wait_for_server

PROGRAM = "azurite-blob"
PORT = 7491
CONTAINER = "bucket"
# The account of every emulator; its key is public.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API_VERSION = "2023-11-03"


@contextmanager
def emulator() -> Iterator[str]:
    """Start Azurite with an empty container in a temporary folder; yield its URL, and end it."""
    url = f"http://127.0.0.1:{PORT}/{ACCOUNT}"
    with tempfile.TemporaryDirectory(prefix="cordwood-azurite-") as folder:
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        place = ["--location", folder, "--blobPort", str(PORT)]
        server = subprocess.Popen([PROGRAM, *options, *place], stdout=subprocess.DEVNULL)
        try:
            wait_for_server(url)
            _create_container(url)
            yield url
        finally:
            server.terminate()
            server.wait()


def _create_container(url: str) -> None:
    """Create the container by a request with a signature, which obstore has no call for.

    The signature is Microsoft's "Authorize with Shared Key":
    https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key
    """
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": _API_VERSION}
    lines = [
        "PUT",
        *[""] * 11,  # the headers of a request without a body
        *[f"{name}:{value}" for name, value in headers.items()],
        f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}",  # the path names the account once more
        "restype:container",
    ]
    digest = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(
        f"{url}/{CONTAINER}?restype=container", method="PUT", headers=headers
    )
    urllib.request.urlopen(request, timeout=10).close()


def main() -> int:
    if shutil.which(PROGRAM) is None:
        print(f"{PROGRAM}: not found; npm install --global azurite, or put it on PATH")
        return 2
    with emulator() as url:
        variables = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": url,
        }
        return run_tests(f"az://{CONTAINER}/tests", variables)


if __name__ == "__main__":
    sys.exit(main())
