"""What a message costs, measured on real servers: `make bench`."""
