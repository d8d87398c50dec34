"""Items of a step beside its tree: more trees, and objects with a state, such as data iterators."""
