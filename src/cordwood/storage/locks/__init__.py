"""Locks of files and directories on local disks."""
