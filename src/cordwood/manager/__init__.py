"""CheckpointManager and StepReader: the steps of a training run, their retention, and their records."""
