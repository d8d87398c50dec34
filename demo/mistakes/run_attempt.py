"""One attempt in its own process: python -m demo.mistakes.run_attempt TITLE LIBRARY FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from demo.mistakes.attempt import attempt
from demo.mistakes.catalogue import MISTAKES

if __name__ == "__main__":
    title, name, folder = sys.argv[1:]
    (mistake,) = [each for each in MISTAKES if each.title == title]
    sys.stdout.write("\n" + json.dumps(attempt(mistake, name, Path(folder))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Orbax leaves threads that wait for a failed save
