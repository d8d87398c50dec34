"""The command `cordwood view`: show a checkpoint, a difference or a run in the browser."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cordwood.cli.arguments import LOCAL_PATH, SOURCE, format_option, prefix_option
from cordwood.cli.output import json_option, print_answer, print_json, print_text
from cordwood.message_text import printable, size_text

if TYPE_CHECKING:
    from cordwood.viewer.resources import Resources

_MAX_MESSAGES = 5  # about resources that could not be read

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
@click.option(
    "--export",
    "file",
    type=LOCAL_PATH,
    metavar="FILE.html",
    help="Write the views into one file instead, and open no browser.",
)
@click.option(
    "--max-mb",
    type=click.FloatRange(min=0.1),
    default=20,
    show_default=True,
    help="The largest size of FILE.html, in MB.",
)
@click.option("--force", is_flag=True, help="Replace FILE.html.")
@prefix_option
@format_option
@click.option(
    "--scratch",
    type=LOCAL_PATH,
    metavar="DIR",
    help="The directory for the decompressed copy of a compressed file. Default: in memory.",
)
@json_option
@click.pass_context
def view_command(
    ctx: click.Context,
    path: str,
    other: str | None,
    no_browser: bool,
    port: int,
    file: str | None,
    max_mb: float,
    force: bool,
    prefix: str | None,
    format: str | None,
    scratch: str | None,
    as_json: bool,
) -> None:
    """Show the checkpoint at PATH in the browser, what changed from PATH to OTHER, or a run.

    PATH is a file, a directory, a URL, or a directory of steps. The page comes from a server in
    this process, which only this machine can reach, and only with the token in the address. Nothing
    is written, and no other host is asked for anything. Ctrl-C ends it.
    """
    from cordwood.storage.locations import LocalPath
    from cordwood.viewer.export_page import refuse_existing_page, refuse_source
    from cordwood.viewer.page import page
    from cordwood.viewer.resources import Resources
    from cordwood.viewer.server import ViewerServer, serve
    from cordwood.viewer.sources import OpenArguments, open_sources

    html = page()  # before anything is opened: Jinja2 may be missing
    if file is None:
        for name in ("force", "max_mb"):
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(
                    f"{option} is for --export: add --export FILE.html, or leave out {option}"
                )
    else:
        refuse_source(file, [path] if other is None else [path, other])
        if not force:
            refuse_existing_page(file)
    folder = None if scratch is None else LocalPath(scratch)
    sources = open_sources(path, other, OpenArguments(format, prefix, folder))

    try:
        resources = Resources(sources)
        if file is not None:
            _export(resources, file, int(max_mb * 1_000_000), as_json=as_json)
            return
        with suppress(KeyboardInterrupt), ViewerServer(html, resources, port=port) as server:
            text = f"{server.url}\nCtrl-C ends the viewer"
            print_answer(text, {"path": path, "url": server.url}, as_json=as_json)
            serve(server, browser=not no_browser)
    finally:
        sources.close()


def _export(resources: Resources, file: str, max_bytes: int, *, as_json: bool) -> None:
    """Write the export, and print its size and what it lacks."""
    from cordwood.io.progress_bar import progress_display
    from cordwood.viewer.export_page import export_page, write_export

    with progress_display(not as_json, "exporting") as report:
        export = export_page(resources, max_bytes=max_bytes, progress=report)
    write_export(file, export.html)
    size = len(export.html)
    if as_json:
        lacks = {"left_out": dict(export.left_out), "unreadable": dict(export.unreadable)}
        print_json({"path": file, "size_bytes": size, **lacks})
        return
    print_text(f"{file}: {size_text(size)}")
    if export.left_out:
        click.echo(f"left out to stay within --max-mb: {export.left_out_text}", err=True)
    for name, message in list(export.unreadable.items())[:_MAX_MESSAGES]:
        click.echo(printable(f"not exported: {name}: {message}"), err=True)
    more = len(export.unreadable) - _MAX_MESSAGES
    if more > 0:
        click.echo(f"not exported: {more} more that could not be read", err=True)
