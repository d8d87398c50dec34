"""The formats, a package each; the protocol that they implement; the registry that lists them."""
