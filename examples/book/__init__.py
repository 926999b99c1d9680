"""A book is rendered: its pages in parallel, then the book, then a mail."""
