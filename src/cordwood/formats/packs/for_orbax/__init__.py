"""The index of a directory of packs for Orbax."""
