"""The inside of `copy`: which files of which steps, and what they are checked against."""
