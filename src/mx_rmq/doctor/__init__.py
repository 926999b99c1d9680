"""Every check of what may be wrong with a server or a queue."""
