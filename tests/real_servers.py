"""The tests of object stores that run on a real server: `make ceph` and `make azure` start one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from urllib.error import HTTPError

TESTS = (
    "tests/storage/test_web_conformance.py",
    "tests/storage/test_directory_stores.py",
    "tests/storage/test_step_storage.py",
    "tests/storage/test_object_store_client.py",
    "tests/storage/test_object_files.py",
    "tests/api/test_urls.py",
    "tests/manager/test_linking.py",
)


def wait_for_server(url: str) -> None:
    """Wait until a server answers, in whatever way. Raises TimeoutError after a minute."""
    for _ in range(120):
        with suppress(OSError):
            with suppress(HTTPError):
                urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.5)
    raise TimeoutError(f"{url} does not answer")


def run_tests(place: str, variables: Mapping[str, str]) -> int:
    """Run the tests in a bucket of a server; return the exit status of pytest.

    Args:
        place: the URL below which each test has a folder of its own.
        variables: the environment that leads to the server.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-k", "real", "-p", "no:cacheprovider", *TESTS]
    environment = {**os.environ, **variables, "CORDWOOD_TEST_STORE": place}
    return subprocess.run(command, env=environment, check=False).returncode
