"""Tests the client for asyncio on a real server."""

import asyncio
import gc
import os
import random
import unittest
import warnings

from distlock import aio
from serving import Off, ServedTest, fork


class AioTest(ServedTest):
    def run_with(self, test, *urls, **kw):
        async def main():
            async with aio.Locks(*urls or (self.url,), on_event=self.events.append, **kw) as locks:
                await test(locks)

        asyncio.run(main())

    async def idle(self, locks):
        """Waits until the client has nothing to do and holds nothing."""
        while locks._client.holds or len(locks._client._tasks) > 0:
            await asyncio.sleep(0.002)

    def test_a_lock(self):
        async def test(locks):
            async with locks.lock(self.name, ttl=5) as lease:
                lease.check()
                self.assertIsNone(await locks.try_lock(self.name))
                self.assertEqual(lease.fence, (await locks.holder(self.name)).fence)
                with self.assertRaises(aio.Held):
                    await locks.lock(self.name, wait=0.05)
                await lease.extend(60)
                self.assertGreater(lease.remaining(), 40)
            self.assertRaises(aio.Lost, lease.check)
            self.assertFalse(await locks.locked(self.name))
            lease = await locks.lock(self.name, ttl=9)
            await asyncio.sleep(10)
            lease.check()
            await lease.release()
            await lease.release()
            with self.assertRaises(aio.Invalid):
                async with locks.lock("a" * 2049):
                    pass

        self.run_with(test)
        self.assertEqual(2, len(self.heard("released")))

    def test_several_and_guard(self):
        async def test(locks):
            async with locks.lock_all([self.name + c for c in "ba"]) as leases:
                self.assertEqual(2, len(leases))
                self.assertIsNone(await locks.try_lock(self.name + "a"))
            self.assertFalse(await locks.locked(self.name + "a"))
            leases = await locks.lock_all([self.name])
            with self.assertRaises(aio.Held):
                await locks.lock_all([self.name, self.name + "0"], wait=0)
            self.assertFalse(await locks.locked(self.name + "0"))
            await leases.release()

            @locks.guard(self.name)
            async def f(x):
                return x, await locks.locked(self.name)

            self.assertEqual((3, True), await f(3))
            self.assertRaises(TypeError, locks.guard(self.name), len)

        self.run_with(test)

    def test_reentrant_by_task(self):
        async def test(locks):
            async with locks.lock(self.name):
                async with locks.lock(self.name, reentrant=True) as inner:
                    inner.check()
                    other = asyncio.ensure_future(locks.try_lock(self.name, reentrant=True))
                    self.assertIsNone(await other)
                self.assertTrue(await locks.locked(self.name))
            self.assertFalse(await locks.locked(self.name))

        self.run_with(test)

    def test_min_hold(self):
        async def test(locks):
            since = asyncio.get_running_loop().time()
            async with locks.lock(self.name, ttl=3, min_hold=4):
                pass
            locked = await locks.locked(self.name)
            self.assertTrue(locked or asyncio.get_running_loop().time() - since >= 4)  # a slow machine may come late
            await (await locks.lock(self.name)).release()
            self.assertGreater(asyncio.get_running_loop().time() - since, 4 - 0.01)

        self.run_with(test)

    def test_a_loss(self):
        async def test(locks):
            told = asyncio.Event()

            async def on_lost(lease):
                told.set()

            lease = await locks.lock(self.name, ttl=9, on_lost=on_lost)
            await asyncio.get_running_loop().run_in_executor(None, self.broken, lease)
            await lease.lost.wait()
            await told.wait()
            self.assertRaises(aio.Lost, lease.check)
            with self.assertRaises(aio.Lost):
                await lease.release()

        self.run_with(test)

    def test_elect(self):
        async def test(locks):
            fences, ended = [], []

            async def lead(lease):
                fences.append(lease.fence)
                if len(fences) == 2:
                    raise ZeroDivisionError
                await asyncio.get_running_loop().run_in_executor(None, self.broken, lease)
                try:
                    await asyncio.sleep(1000)
                finally:
                    ended.append(lease.lost.is_set())
                    raise KeyError("after the loss")

            with self.assertRaises(ZeroDivisionError), self.assertLogs("distlock") as logged:
                await locks.elect(self.name, lead, ttl=9)
            self.assertIn("after the loss", "".join(logged.output))
            self.assertEqual([True], ended)
            self.assertLess(fences[0], fences[1])

            async def for_ever(lease):
                await asyncio.sleep(1000)

            task = asyncio.ensure_future(locks.elect(self.name, for_ever))
            while not await locks.locked(self.name):
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertFalse(await locks.locked(self.name))

        self.run_with(test)

    def test_cancellation_at_any_await_leaves_nothing(self):
        async def use(locks, name):
            async with locks.lock(name, ttl=60, wait=30):
                await asyncio.sleep(0)

        async def several(locks, name):
            async with locks.lock_all([name, name + "b"], ttl=60):
                await asyncio.sleep(0)

        async def test(locks):
            await use(locks, self.name)
            for work in use, several:
                for n in range(120):
                    task = asyncio.ensure_future(work(locks, self.name))
                    for _ in range(n):
                        await asyncio.sleep(0)
                    if n > 60:
                        await asyncio.sleep(random.uniform(0, 0.004))
                    task.cancel()
                    try:
                        await task
                    except asyncio.CancelledError:
                        pass
                await self.idle(locks)
                self.assertFalse(await locks.locked(self.name))
                self.assertFalse(await locks.locked(self.name + "b"))

        self.run_with(test)

    def test_a_wait_that_times_out_leaves_nothing(self):
        async def test(locks):
            held = await locks.lock(self.name)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(locks.lock(self.name), 0.1)
            await held.release()
            await self.idle(locks)
            self.assertFalse(await locks.locked(self.name))

        self.run_with(test)

    def test_a_forgotten_lease(self):
        async def test(locks):
            with self.assertLogs("distlock", "WARNING"):
                await locks.lock(self.name)
                await self.idle(locks)
            self.assertFalse(await locks.locked(self.name))

        self.run_with(test)
        self.assertEqual(1, len(self.heard("forgotten")))

    def test_the_end_of_the_loop_leaves_no_attempt(self):
        locks = aio.Locks(self.url)

        async def main():
            held = await locks.lock(self.name + "held", ttl=2)
            waiting = asyncio.ensure_future(locks.lock(self.name + "held", ttl=60).__aenter__())
            asyncio.ensure_future(locks.lock(self.name, ttl=60).__aenter__())
            await asyncio.sleep(0.1)
            return held, waiting

        async def again():  # in another loop
            async with locks:
                async with locks.lock(self.name):
                    pass

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # connections that nobody has closed
            asyncio.run(main())
            self.free()
            self.free(self.name + "held")
            asyncio.run(again())
            gc.collect()

    def test_a_host_that_is_off(self):
        for how in "half open", "silent":
            async def test(locks):
                async def use():
                    await (await locks.lock(self.name)).release()

                await asyncio.wait_for(use(), 20)  # less than the time for which a request waits

            self.run_with(test, Off(self, how).url, self.url)

    def test_a_fork(self):
        async def test(locks):
            lease = await locks.lock(self.name)
            child = fork()
            if child == 0:
                os._exit(0 if lease.remaining() == 0 and lease.lost.is_set() else 1)
            self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            lease.check()
            await lease.release()

        self.run_with(test)


if __name__ == "__main__":
    unittest.main()
