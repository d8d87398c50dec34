"""Entry point of `python -m cordwood`: the command line program."""

from __future__ import annotations

from cordwood.cli.main import main

if __name__ == "__main__":
    main()
