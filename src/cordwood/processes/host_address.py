"""The address by which the other processes of a job reach this one."""

from __future__ import annotations

import ipaddress
import socket
import sys

from cordwood.processes.coordination_client import coordinator_address

_ANY_PORT = 9  # no packet is sent to it
LOOPBACK = "127.0.0.1"


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def host_address() -> str:
    """Return the IP address of this machine by which the other processes of the job reach it.

    It is the address by which this machine reaches the coordinator of jax, and the loopback address
    if all processes may be on one machine.
    """
    coordinator = _coordinator_host()
    if coordinator is None or _is_loopback(coordinator):
        return LOOPBACK
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            coordinator, _ANY_PORT, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of a datagram socket: it only chooses a route
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return LOOPBACK


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _coordinator_host() -> str | None:
    """Return the host of the coordinator of jax; None without one."""
    if "jax" not in sys.modules:
        return None
    address = coordinator_address()
    return None if address is None else address.rpartition(":")[0].strip("[]")
