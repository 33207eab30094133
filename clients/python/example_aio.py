import asyncio

from distlock import aio


async def main():
    async with aio.Locks("http://localhost:7077") as locks:
        async with locks.lock("report", ttl=30, wait=10) as lease:
            print(f"fence {lease.fence}")


asyncio.run(main())
