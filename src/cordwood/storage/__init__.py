"""Storage: files and directories of local disks, objects in stores, locks and transactions."""
