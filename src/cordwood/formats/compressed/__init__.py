"""Compressed streams: gzip (RFC 1952) and Zstandard (RFC 8878), around a whole file.

Both have a checksum of their contents, which is checked while decompressing.
"""
