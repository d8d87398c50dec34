"""Compressed streams: gzip (RFC 1952) and Zstandard (RFC 8878), around a whole file.

Both carry a checksum of what they hold, which is checked while decompressing.
"""
