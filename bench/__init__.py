"""mx-rmq beside its peers, measured in one go: `make bench`. See README.md here."""
