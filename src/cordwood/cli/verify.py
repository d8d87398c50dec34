"""cordwood verify: every byte against its digest."""

from __future__ import annotations

import click

from cordwood.cli.bar import bar
from cordwood.cli.output import json_option, print_json, print_text, size_text

__all__ = ["command"]

_MOST_NAMED = 5

EXAMPLES = """
\b
Examples:
  cordwood verify run/100                       all of it, by several threads
  cordwood verify run/100 --sample 5%           a twentieth of each file, chosen at random
  cordwood verify run/100 --resume run.verify   go on where an interrupted call stopped
"""


def _share(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """5% or 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"expected a share such as 5% or 0.05, found {text!r}")
    return share


@click.command("verify", epilog=EXAMPLES)
@click.argument("path")
@click.option(
    "--sample", default="100%", callback=_share, help="Check a share of the blocks: 5% or 0.05."
)
@click.option("--seed", type=int, help="Of the choice of the sample.")
@click.option("--resume", metavar="FILE", help="Note in FILE what was found whole, and go on.")
@click.option("--format", "format_", help="The format of a file whose suffix does not say it.")
@json_option
def command(
    path: str,
    sample: float,
    seed: int | None,
    resume: str | None,
    format_: str | None,
    as_json: bool,
) -> None:
    """Read the checkpoint at PATH through, and check every byte that is under a digest.

    Damage is told by leaf, file and byte range, and exits with 1. What other tools have written
    without digests is counted as unverified.
    """
    from cordwood.api.verify import verify
    from cordwood.errors import CorruptionError

    try:
        with bar("verifying", quiet=as_json) as progress:
            found = verify(
                path, sample=sample, seed=seed, resume=resume, progress=progress, format=format_
            )
    except CorruptionError as e:
        if as_json:
            print_json({"path": path, "damaged": True, "message": str(e)})
        else:
            print_text(f"damaged: {e}")
        raise click.exceptions.Exit(1) from e
    if as_json:
        print_json({**found._asdict(), "damaged": False, "sample": sample})
        return
    what = "no damage in what was read" if sample < 1 else "no damage"
    noun = "leaf" if found.leaves == 1 else "leaves"
    text = f"{path}: {what}: {found.leaves} {noun}, {size_text(found.verified_bytes)} verified"
    if found.unverified_bytes:
        why = "not read, or without a digest" if sample < 1 else "without a digest"
        text += f", {size_text(found.unverified_bytes)} {why}"
    if found.unstored_chunks:
        chunks = "chunk" if found.unstored_chunks == 1 else "chunks"
        leaves = ", ".join(found.unstored_leaves[:_MOST_NAMED])
        more = len(found.unstored_leaves) - _MOST_NAMED
        text += f", {found.unstored_chunks} {chunks} not stored and read as zeros ({leaves}"
        text += f" and {more} more)" if more > 0 else ")"
    print_text(text)
