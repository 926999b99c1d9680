"""Render the pages of a book in parallel, bind them, then send a mail."""
