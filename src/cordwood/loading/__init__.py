"""The inside of `load`: matching `like` with the checkpoint, casting, resharding, and restoring leaves."""
