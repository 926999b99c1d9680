"""mx-rmq alone: `python -m bench.own` measures a message on a server of its own, or on yours."""
