"""The scripts that write the golden files, each in an environment of its tool, without cordwood."""
