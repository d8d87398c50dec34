"""Steps whose files lie in the roots of several processes: what is complete, who reads where."""
