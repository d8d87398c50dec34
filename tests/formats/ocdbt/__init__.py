"""Tests of OCDBT databases, the store of keys and values below Orbax and others."""
