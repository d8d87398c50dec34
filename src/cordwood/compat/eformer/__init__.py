"""The names of `eformer.pytree` and `eformer.serialization`, with saves through an array manager."""
