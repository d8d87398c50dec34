"""The limits that the servers of cordwood share: of connections, of requests, and of time."""
