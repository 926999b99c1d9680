"""Everything that speaks to the server. Nothing else imports redis or knows a key."""
