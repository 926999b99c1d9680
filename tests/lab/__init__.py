"""What the tests build on: real servers, a movable clock, a cutting proxy, snapshots, a model."""
