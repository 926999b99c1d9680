"""The demo: a shop to read and copy (shop.py), and the story that runs it (scenario.py)."""
