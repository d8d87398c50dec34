"""The formats, a package each; the table that lists them; the protocols of their modules."""
