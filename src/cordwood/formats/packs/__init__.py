"""Packs: a directory of safetensors files and one index, `cordwood.json` (docs/format.md)."""
