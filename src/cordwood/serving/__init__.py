"""What the servers of cordwood share: limits of connections, of requests, and of time."""
