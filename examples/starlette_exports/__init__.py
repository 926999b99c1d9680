"""A web application that exports tables as CSV: exports.py and app.py."""
