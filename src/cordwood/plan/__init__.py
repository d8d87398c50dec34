"""Plans: the byte ranges that a load reads, and the files and parts that a save writes. Pure."""
