"""One running worker, on asyncio: one file per duty."""
