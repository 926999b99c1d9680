"""Connections to servers. Only this package imports redis. It knows no key and no script."""
