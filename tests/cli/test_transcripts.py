"""docs/cli.md is what the command prints."""

from __future__ import annotations

from demo.cli_transcripts import PAGE, page


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == page(), "run python -m demo.cli_transcripts"
