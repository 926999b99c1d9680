"""The demo: a shop to read and to copy (shop.py), and the story that is told with it."""
