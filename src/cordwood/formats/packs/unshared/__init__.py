"""Steps whose processes have a root each: the files of a step, and its index as it is sent."""
