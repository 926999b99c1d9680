"""mx-rmq compared with its peers: `make bench`. See README.md here."""
