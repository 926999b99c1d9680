"""The pure core: no server, no event loop, no clock, no logging."""
