"""How far it goes: `python -m bench.capacity` calculates it from what a message costs."""
