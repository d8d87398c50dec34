"""The formats: a package each, the protocol that they implement, and the registry that lists them."""
