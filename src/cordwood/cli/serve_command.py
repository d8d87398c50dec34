"""The command `cordwood serve`: let other machines read checkpoints by HTTP."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import BinaryIO

import click

from cordwood.cli.arguments import PATH
from cordwood.cli.output import json_option, print_answer

_MAX_TOKEN_BYTES = 4096

EXAMPLES = """
\b
Examples:
  cordwood serve run                                      to this machine, at any free port
  cordwood serve run --host 10.0.0.5 --port 8000 --token-file token
"""


@click.command("serve", epilog=EXAMPLES, short_help="Let other machines read checkpoints.")
@click.argument("root", type=PATH)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at. 127.0.0.1 is reached by this machine alone, 0.0.0.0 stands for "
    "all addresses of this machine.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port. Default: any free one."
)
@click.option(
    "--token-file",
    type=click.File("rb"),
    metavar="FILE",
    help="A file with the token that readers must send. Default: a random one, which is printed.",
)
@json_option
def serve_command(
    root: str, host: str, port: int, token_file: BinaryIO | None, as_json: bool
) -> None:
    """Serve the checkpoints below the directory ROOT by HTTP, to readers that send the token.

    Steps, published versions and other directories of cordwood are served: their indexes, and the
    files that these name. Nothing else is, and nothing can be written. `WeightFollower` of the
    address follows published versions. The bytes are not encrypted: serve to networks that you
    trust. Ctrl-C ends it.

    Readers set the token by `cordwood.storage_options`, for the address that is printed.
    """
    from cordwood.formats.load_format import storage_of
    from cordwood.formats.table import DEFAULT
    from cordwood.storage.locations import parse_local_path
    from cordwood.storage.paths import is_folder
    from cordwood.storage.peers.peer_server import PeerServer

    directory = parse_local_path(root, purpose="to serve")
    if not is_folder(directory):
        raise click.UsageError(f"{root}: expected a directory of checkpoints")
    token = secrets.token_urlsafe(32) if token_file is None else _token_in(token_file)
    server = PeerServer(directory, storage_of(DEFAULT).RULES, token, host=host, port=port)
    with suppress(KeyboardInterrupt), server:
        document = {"path": root, "url": f"http://{_shown(host)}:{server.port}"}
        if token_file is None:
            document["token"] = token
        lines = [f"{name}: {value}" for name, value in document.items() if name != "path"]
        print_answer("\n".join([*lines, "Ctrl-C ends the server"]), document, as_json=as_json)
        server.wait()


def _shown(host: str) -> str:
    """Return the host of the printed address, as another machine can use it."""
    from cordwood.processes.host_address import address_for_others

    address = address_for_others(host)
    return f"[{address}]" if ":" in address else address


def _token_in(file: BinaryIO) -> str:
    data = file.read(_MAX_TOKEN_BYTES).strip()
    if not data or not all(0x21 <= byte <= 0x7E for byte in data):
        raise click.UsageError(
            f"{file.name}: expected a token of printable characters, without spaces"
        )
    return str(data, "ascii")
