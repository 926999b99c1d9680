"""A web application that writes the invoices of a month: invoices.py and app.py."""
