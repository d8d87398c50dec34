"""Movement of bulk bytes: read, verify, decode, write; buffers, threads and progress."""
