"""Tests what people expect of a lock who know those of Python: to use one again, and from where nobody looks."""

import asyncio
import gc
import pickle
import sys
import threading
import unittest

import distlock
from distlock import aio
from serving import ServedTest, eventually


class IdiomTest(ServedTest):
    def refused(self, name=None):
        """Expects that another client does not get the lock."""
        with distlock.Locks(self.url) as other:
            self.assertIsNone(other.try_lock(name or self.name, ttl=5))

    def test_a_lock_in_many_with_statements(self):
        locks = self.client()
        for lock, name in (locks.lock(self.name), self.name), (locks.lock_all([self.name + "a", self.name + "b"]), self.name + "b"):
            fences = []
            for _ in range(3):
                with lock as taken:
                    fences += [lease.fence for lease in (taken if isinstance(taken, distlock.Leases) else [taken])]
                    self.refused(name)
                self.free(name)
            self.assertEqual(sorted(set(fences[:: len(fences) // 3])), fences[:: len(fences) // 3])
            self.assertRaises(RuntimeError, taken.__enter__)  # it is no lock, and so none is held by it

    def test_a_lock_that_was_released_by_hand_is_taken_again(self):
        lock = self.client().lock(self.name)
        lock.release()
        with lock:
            self.refused()
        self.free()

    def test_a_lock_that_was_lost_is_not_entered(self):
        lock = self.client().lock(self.name, ttl=9)
        self.broken(lock)
        self.assertTrue(lock.lost.wait(60))
        with self.assertRaises(distlock.Lost):
            with lock:
                self.fail("the block runs without the lock")
        with lock:
            self.refused()

    def test_a_lock_that_many_threads_share_excludes(self):
        lock, inside, most = self.client().lock(self.name), [], []

        def work():
            for _ in range(10):
                with lock as lease:
                    inside.append(lease.fence)
                    most.append(len(inside))
                    lease.check()
                    inside.remove(lease.fence)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([1] * 40, most)
        self.free()

    def test_a_semaphore_that_threads_share_releases_each_its_own(self):
        lock, barrier, errors = self.client().lock(self.name, limit=2), threading.Barrier(2), []

        def work(late):
            try:
                with lock as lease:
                    barrier.wait()
                    if late:
                        barrier.wait()
                        lease.check()
                if not late:
                    barrier.wait()
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(late,)) for late in (False, True)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([], errors)
        with distlock.Locks(self.url) as other:
            self.assertIsNotNone(other.try_lock(self.name, limit=2))

    def test_asyncio_a_lock_that_many_tasks_share(self):
        async def main():
            async with aio.Locks(self.url) as locks:
                mutex, semaphore = locks.lock(self.name), locks.lock(self.name + "s", limit=2)
                inside, first = [], asyncio.Event()

                async def alone():
                    for _ in range(5):
                        async with mutex as lease:
                            inside.append(lease)
                            await asyncio.sleep(0.002)
                            self.assertEqual([lease], inside)
                            lease.check()
                            inside.remove(lease)

                async def permit(late):
                    async with semaphore as lease:
                        inside.append(lease)
                        while len(inside) < 2:
                            await asyncio.sleep(0.001)
                        if late:
                            await first.wait()
                            lease.check()
                    first.set()

                await asyncio.gather(*(alone() for _ in range(4)))
                await asyncio.gather(permit(True), permit(False))
                self.assertFalse(await locks.locked(self.name))
                self.assertFalse(await locks.locked(self.name + "s"))

        asyncio.run(main())

    def test_asyncio_a_lock_becomes_a_task(self):
        async def main():
            async with aio.Locks(self.url) as locks:
                await (await asyncio.create_task(locks.lock(self.name))).release()
                await (await asyncio.ensure_future(locks.lock(self.name))).release()
                if sys.version_info >= (3, 11):
                    async with asyncio.TaskGroup() as group:
                        task = group.create_task(locks.lock_all([self.name]))
                    await task.result().release()
                taking = locks.lock(self.name)
                lease = await asyncio.create_task(taking)
                with self.assertRaises(RuntimeError):  # as of any coroutine
                    await asyncio.create_task(taking)
                waiting = asyncio.create_task(locks.lock(self.name))
                await asyncio.sleep(0.05)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                await lease.release()
                locks.lock(self.name).close()
                while locks._client.holds or locks._client._tasks:
                    await asyncio.sleep(0.001)
                self.assertFalse(await locks.locked(self.name))

        asyncio.run(main())

    def test_a_release_by_the_garbage_collector_in_the_clients_own_thread(self):
        locks = self.client()

        class Job:
            def __init__(self, lease):
                self.lease, self.me = lease, self

            def __del__(self):
                self.lease.release()

        def abandoned(name, box):
            with locks.lock(name):
                box.append(box)
                yield

        gc.disable()
        self.addCleanup(gc.enable)
        box = []
        generator = abandoned(self.name + "g", box)
        next(generator)
        box.append(generator)
        Job(locks.lock(self.name))
        del generator, box
        locks._worker.loop.call_soon_threadsafe(gc.collect)
        self.free()
        self.free(self.name + "g")
        with locks.lock(self.name, wait=60):
            self.refused()

    def test_guard_of_what_returns_before_its_work_is_done(self):
        locks, ran = self.client(), []

        async def work():
            ran.append(1)

        class Called:
            async def __call__(self):
                ran.append(1)

        self.assertRaises(TypeError, locks.guard(self.name), Called())
        for late in lambda: work(), lambda: Called()(), lambda: (n for n in [1]):
            self.assertRaisesRegex(TypeError, "before its work is done", locks.guard(self.name)(late))
        self.assertEqual([], ran)
        self.free()

    def test_a_thread_that_has_died_is_replaced(self):
        locks = self.client()
        lease = locks.lock(self.name, ttl=2)
        locks._worker.loop.call_soon_threadsafe(locks._worker.loop.stop)
        eventually(lambda: not locks._worker.lives())
        with locks.lock(self.name + "2"):
            self.refused(self.name + "2")
        self.assertTrue(lease.lost.is_set())
        self.assertRaises(distlock.Lost, lease.check)

    def test_a_pickle_says_what_to_do(self):
        locks = self.client()
        with locks.lock(self.name) as lease:
            self.assertRaisesRegex(TypeError, "make Locks in each", pickle.dumps, locks)
            self.assertRaisesRegex(TypeError, "its name and fence", pickle.dumps, lease)

    def test_two_clients_under_gevent(self):
        try:
            import gevent  # noqa: F401
        except ImportError:
            self.skipTest("gevent is not installed")
        p = self.program(
            "from gevent import monkey; monkey.patch_all()\nimport gevent\n"
            "clients = [distlock.Locks(sys.argv[2]) for _ in range(3)]\n"
            "def work(n):\n  for _ in range(5):\n    with clients[n % 3].lock(f'{name}/{n % 4}', ttl=9, wait=60) as lease: gevent.sleep(.001); lease.check()\n"
            "gevent.joinall([gevent.spawn(work, n) for n in range(12)], raise_error=True)\n"
            "clients[0].close()\nwork(1)\nprint('done')\n",
            warnings=False,
        )
        self.assertEqual("done\n", p.communicate()[0])


if __name__ == "__main__":
    unittest.main()
