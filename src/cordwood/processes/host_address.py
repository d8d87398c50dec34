"""The addresses by which other processes and machines reach this one."""

from __future__ import annotations

import ipaddress
import socket
import sys

from cordwood.processes.coordination_client import coordinator_address

_ANY_PORT = 9  # no packet is sent to it
LOOPBACK = "127.0.0.1"
_OTHER_MACHINES = {False: "192.0.2.1", True: "2001:db8::1"}  # of documentation: routed as any other


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
    return _address_towards(coordinator) or LOOPBACK


def address_for_others(host: str) -> str:
    """Return the address by which other machines reach a server that listens at `host`.

    It is `host`, unless that stands for all addresses of this machine (0.0.0.0, ::). Then it is the
    address from which this machine reaches others; without a network, its name.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return _address_towards(_OTHER_MACHINES[address.version == 6]) or host_name()


def _address_towards(host: str) -> str | None:
    """Return the address of this machine on the route to a host; None if there is no route."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, _ANY_PORT, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of a datagram socket: it only chooses a route
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return None


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
