"""The inside of `cordwood rm`: which files belong to a checkpoint, and their removal."""
