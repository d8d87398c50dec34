"""Checkpoints of cordwood, read by Orbax of many versions: make orbax-versions."""
