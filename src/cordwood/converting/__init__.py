"""The inside of `convert`: which trees, what is lost, what may be replaced, and the leaves."""
