"""One file is one queue. Each is imported only in that queue's own environment."""
