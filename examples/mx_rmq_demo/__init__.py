"""The demo: a shop to read and copy (shop.py), and the scenario that runs it (scenario.py)."""
