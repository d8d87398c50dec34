"""The tests in this folder are collected where transformers is installed: by `make recipes`."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]
