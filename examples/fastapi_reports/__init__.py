"""A web application that has reports written by a worker: reports.py, app.py and page.html."""
