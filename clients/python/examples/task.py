"""The same for asyncio: the body is cancelled when the lock is lost, and LockLost is raised."""

import asyncio

import leasehold


async def main() -> None:
    async with leasehold.lock("billing", wait=60) as lease:
        for invoice in ["a", "b", "c"]:
            await asyncio.sleep(0.1)
            print(f"charges {invoice} with {lease.headers}")


asyncio.run(main())
