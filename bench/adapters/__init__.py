"""One file per queue, imported only in that queue's own environment."""
