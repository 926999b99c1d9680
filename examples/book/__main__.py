"""Order a book of a hundred pages, and print the result."""

import asyncio

from book.render import mq


async def main() -> None:
    async with mq:
        async with mq.flow() as flow:
            pages = [flow.produce("page", number) for number in range(1, 101)]
            book = flow.produce("book", "The Whale", after=pages)
        print(await mq.result("book", book, timeout=60))


asyncio.run(main())
