"""The command `cordwood view`: show a checkpoint, a difference or a run in the browser."""

from __future__ import annotations

import click

from cordwood.cli.output import json_option, print_json, print_text
from cordwood.cli.path_arguments import PATH, SOURCE

EXAMPLES = """
\b
Examples:
  cordwood view run/100                     one checkpoint
  cordwood view run/100 run/200             what changed
  cordwood view run                         all steps of a run
  cordwood view run/100 --export 100.html   the same views in one file
"""


@click.command("view", epilog=EXAMPLES, short_help="Show checkpoints in the browser.")
@click.argument("path", type=SOURCE)
@click.argument("other", type=SOURCE, required=False)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port. Default: any free one."
)
@click.option("--prefix", help="The tree to use, if the directory holds several.")
@click.option("--format", "format_", help="The format of the file, if its suffix does not name it.")
@click.option(
    "--scratch",
    type=PATH,
    metavar="DIR",
    help="The directory for the decompressed copy of a compressed file. Default: in memory.",
)
@json_option
def command(
    path: str,
    other: str | None,
    no_browser: bool,
    port: int,
    prefix: str | None,
    format_: str | None,
    scratch: str | None,
    as_json: bool,
) -> None:
    """Show the checkpoint at PATH in the browser, what changed from PATH to OTHER, or a run.

    PATH is a file, a directory, a URL, or a directory of steps. The page comes from a server in
    this process, which only this machine can reach, and only with the token in the address. Nothing
    is written, and no other host is asked for anything. Ctrl-C ends it.
    """
    from cordwood.viewer.page import page
    from cordwood.viewer.resources import Resources
    from cordwood.viewer.serve import serve
    from cordwood.viewer.sources import OpenArguments, open_sources

    html = page()  # before anything is opened: Jinja2 may be missing
    sources = open_sources(path, other, OpenArguments(format_, prefix, scratch))

    def announce(url: str) -> None:
        if as_json:
            print_json({"path": path, "url": url})
        else:
            print_text(f"{url}\nCtrl-C ends the viewer")

    try:
        serve(html, Resources(sources), port=port, browser=not no_browser, announce=announce)
    finally:
        sources.close()
