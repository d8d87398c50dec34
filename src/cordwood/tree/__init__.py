"""Trees: flattening, structures as plain values, and the elements of leaves on the host."""
