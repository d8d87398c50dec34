"""Flax's msgpack, bare and under gzip and zstd; and streams of msgpack records, read only.

A record is a key path and Flax's bytes of a value. Flax's suffix is used for such streams too.
"""
