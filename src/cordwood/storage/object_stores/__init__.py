"""Storage in object stores: requests, uploads, conditional writes, and directories of objects."""
