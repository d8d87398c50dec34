"""Movement of bulk bytes: read, verify, decode, write; buffers and progress."""
