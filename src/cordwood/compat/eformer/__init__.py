"""The names of `eformer.pytree` and `eformer.serialization`, and saves by an array manager."""
