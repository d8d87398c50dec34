"""Settings before anything imports jax: eight virtual CPU devices and no accelerator."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

DEVICES = 8

# A shell script starts `make test &` with SIGINT ignored, and so would be the tests' children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_PLATFORMS"] = "cpu"
_flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in _flags:
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count={DEVICES}".strip()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.database import DirectoryBasedExampleDatabase  # noqa: E402

from tests.contract import internal_names  # noqa: E402

# Slow shared machines must not fail a property that holds: examples are counted, not timed. And
# whether a change passes is no throw of dice: `make test` draws the same examples each time, `make
# fuzz` and `make soak` draw new ones.
settings.register_profile(
    "cordwood",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "new-examples",
    settings.get_profile("cordwood"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),  # what failed comes first
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "cordwood"))


# Without this, a disk that becomes full fails thousands of tests in ways that do not say why.
FREE_BYTES = 3 << 30


def pytest_sessionstart() -> None:
    """Stop before the first test where the disk of temporary files is nearly full."""
    directory = tempfile.gettempdir()
    free = shutil.disk_usage(directory).free
    if free < FREE_BYTES:
        pytest.exit(
            f"the tests write temporary files in {directory}, which has {free >> 20} MiB of free "
            f"space; they need {FREE_BYTES >> 20} MiB: free some, or set TMPDIR",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a module that uses public names only."""
    # The processes of a run compare the names of their tests: an address differs in each.
    assert " at 0x" not in item.nodeid, f"{item.nodeid}: give this test an `ids=` without addresses"
    if not internal_names(item.path):
        item.add_marker(pytest.mark.contract)


@pytest.fixture
def cut_small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays of the zarr layout are cut into chunks as large ones are."""
    from cordwood.plan import cells

    monkeypatch.setattr(cells, "SMALL_BYTES", 0)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[str]:
    """Return the path of a directory in memory, where flushes cost nothing.

    It is on the disk of `tmp_path` where memory has no file system, or a small one.
    """
    place = "/dev/shm" if _free_bytes("/dev/shm") >= 1 << 29 else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield folder


def _free_bytes(folder: str) -> int:
    try:
        space = os.statvfs(folder)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize if os.access(folder, os.W_OK) else 0


@pytest.fixture(name="fake_accelerator")
def _fake_accelerator() -> Iterator[str]:
    """CPU devices that cordwood takes for accelerators; the value is their host memory kind."""
    from tests.devices.fake_accelerator import fake_accelerator

    with fake_accelerator() as kind:
        yield kind
