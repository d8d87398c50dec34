"""The matching of stored leaves with those of `like`, and the errors where they differ."""
