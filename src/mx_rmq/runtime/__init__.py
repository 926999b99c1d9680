"""The cast at work, on asyncio: one file a duty."""
