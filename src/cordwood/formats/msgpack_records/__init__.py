"""A stream of msgpack records, read only: a key path and Flax's bytes of a value each."""
