"""The tests of object stores on a real server: Ceph's gateway, on loopback, in a temporary folder.

`make ceph` runs it, as root. The cluster is one monitor, one manager and one disk in a file, and
takes about 20 s to start and 1 GB of memory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.real_servers import run_tests, wait_for_server

PACKAGES = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common", "radosgw")
PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "radosgw", "monmaptool", "ceph-authtool")
PORT, MONITOR_PORT = 7490, 8490
KEYS = {"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "testsecret"}

_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = {monitor}
keyring = {folder}/keyring
auth client required = cephx
public network = 127.0.0.0/8
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
pid file = {folder}/run/$name.pid
log file = {folder}/log/$name.log
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
bluestore block size = 10737418240
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
[client.rgw]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


@contextmanager
def gateway() -> Iterator[str]:
    """Start a cluster with a gateway, which has one user; yield its URL, and end it."""
    folder = Path(tempfile.mkdtemp(prefix="cordwood-ceph-"))
    try:
        _start(folder)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        for file in (folder / "run").glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)
        time.sleep(2)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path) -> None:
    for name in ("mon", "mgr", "osd", "rgw", "run", "log"):
        (folder / name).mkdir()
    monitor = f"[v2:127.0.0.1:{MONITOR_PORT},v1:127.0.0.1:{MONITOR_PORT + 1}]"
    fsid = str(uuid.uuid4())
    configuration, keyring = folder / "ceph.conf", folder / "keyring"
    configuration.write_text(
        _CONFIGURATION.format(folder=folder, fsid=fsid, monitor=monitor, port=PORT)
    )

    def run(*command: str) -> str:
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=120
        ).stdout

    def ceph(*command: str) -> str:
        return run("ceph", "-c", str(configuration), *command)

    def add_user(name: str, *rights: str) -> None:
        (folder / "key").write_text(ceph("auth", "get-or-create", name, *rights))
        run("ceph-authtool", str(keyring), "--import-keyring", str(folder / "key"))

    new_key = ("ceph-authtool", str(keyring), "--gen-key")
    run(*new_key, "--create-keyring", "-n", "mon.", "--cap", "mon", "allow *")
    all_rights = [part for each in ("mon", "osd", "mgr") for part in ("--cap", each, "allow *")]
    run(*new_key, "-n", "client.admin", *all_rights)
    monmap = str(folder / "monmap")
    run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, monmap)
    server = ("-c", str(configuration))
    run("ceph-mon", "--mkfs", "-i", "a", *server, "--monmap", monmap, "--keyring", str(keyring))
    run("ceph-mon", "-i", "a", *server)
    add_user("mgr.a", "mon", "allow profile mgr", "osd", "allow *", "mds", "allow *")
    run("ceph-mgr", "-i", "a", *server)
    disk = ceph("osd", "create").strip()
    add_user(
        f"osd.{disk}", "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"
    )
    run("ceph-osd", "-i", disk, "--mkfs", *server)
    run("ceph-osd", "-i", disk, *server)
    add_user("client.rgw", "mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw")
    run("radosgw", "-n", "client.rgw", *server)
    wait_for_server(f"http://127.0.0.1:{PORT}")
    user = ["--uid=test", "--display-name=test", "--access-key=testkey", "--secret-key=testsecret"]
    run("radosgw-admin", "-n", "client.rgw", *server, "user", "create", *user)


def main() -> int:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        print(f"{', '.join(missing)}: not found; apt-get install {' '.join(PACKAGES)}")
        return 2
    import boto3

    with gateway() as url:
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket="bucket")
        variables = {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
        return run_tests("s3://bucket/tests", variables)


if __name__ == "__main__":
    sys.exit(main())
