"""mx-rmq alone: `python -m bench.own` measures a message on its own server, or on yours."""
