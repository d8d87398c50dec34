"""CheckpointManager and StepReader: the steps of a run, their retention, and their records."""
