"""What the tests build on: real servers, a moving clock, a cutting proxy, snapshots, a model."""
