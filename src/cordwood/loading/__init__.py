"""The inside of `load`: matching `like` with a checkpoint, casts, resharding, restored leaves."""
