"""The inside of `verify`: the checks of one checkpoint or of several, and their result."""
