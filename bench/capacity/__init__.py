"""How much load shards carry: `python -m bench.capacity` estimates it from message costs."""
