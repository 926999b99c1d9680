"""A web application that sends a newsletter: newsletter.py and app.py."""
