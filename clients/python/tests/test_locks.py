"""Tests the client for threads on a real server."""

import gc
import os
import threading
import time
import unittest

import distlock
from serving import ServedTest, eventually


class LockTest(ServedTest):
    def test_a_lock_excludes_and_its_fence_grows(self):
        a, b = self.client(meta={"team": "blue"}), self.client()
        with a.lock(self.name, meta={"job": "7"}) as lease:
            self.assertIsNone(b.try_lock(self.name))
            with self.assertRaises(distlock.Held) as caught:
                b.lock(self.name, wait=0)
            self.assertEqual(("blue", "7"), tuple(caught.exception.holders[0].meta[k] for k in ("team", "job")))
            holder = b.holder(self.name)
            self.assertEqual((lease.fence, "exclusive", str(os.getpid())), (holder.fence, holder.mode, holder.meta["pid"]))
            self.assertTrue(b.locked(self.name))
        self.assertFalse(b.locked(self.name))
        self.assertIsNone(b.holder(self.name))
        with b.lock(self.name) as next_one:
            self.assertGreater(next_one.fence, lease.fence)
        self.assertRaises(distlock.Lost, lease.check)

    def test_names_of_all_kinds(self):
        locks = self.client()
        for name in ("a/b", ".", "..", "ü 锁", "%2F", "?x=1&y#z", "a" * 2048):
            with locks.lock(name):
                self.assertTrue(locks.locked(name), name)
        self.assertRaises(distlock.Invalid, locks.lock, "a" * 2049)

    def test_readers_and_permits(self):
        locks = self.client()
        with locks.lock(self.name, mode="read"), locks.lock(self.name, mode="read"):
            self.assertIsNone(locks.try_lock(self.name, mode="write"))
        first, second = locks.lock(self.name + "s", limit=2), locks.lock(self.name + "s", limit=2)
        self.assertIsNone(locks.try_lock(self.name + "s", limit=2))
        first.release()
        second.release()

    def test_renewal_and_its_absence(self):
        locks, lost = self.client(), threading.Event()
        with locks.lock(self.name, ttl=9) as lease:
            fixed = locks.lock(self.name + "fixed", ttl=1.5, renew=False, on_lost=lambda _: lost.set())
            self.assertTrue(lost.wait(60))
            self.assertTrue(fixed.lost.is_set())
            self.assertRaises(distlock.Lost, fixed.release)
            time.sleep(9)
            lease.check()  # for longer than its TTL
        self.assertEqual(1, len(self.heard("lost", self.name + "fixed")))

    def test_extend(self):
        locks = self.client()
        lease = locks.lock(self.name, ttl=20, renew=False)
        lease.extend(60)
        self.assertGreater(lease.remaining(), 40)
        self.assertGreater(locks.holder(self.name).left, 40)
        lease.extend(5)  # shortens nothing
        self.assertGreater(lease.remaining(), 40)
        lease.release()
        self.assertRaises(distlock.Lost, lease.extend, 5)

    def test_several_locks_all_or_none(self):
        locks, other = self.client(), self.client()
        names = [self.name + c for c in "cab"]
        with locks.lock_all(names, ttl=5) as leases:
            self.assertEqual(sorted(names), [lease.name for lease in leases])
            self.assertIsNone(other.try_lock(names[0]))
            self.assertEqual(names[1], leases[names[1]].name)
            leases.check()
        with other.lock(names[0]):
            self.assertRaises(distlock.Held, locks.lock_all, names, wait=0.1)
            self.assertFalse(any(locks.locked(n) for n in names[1:]))
        self.assertRaises(ValueError, locks.lock_all, [])
        self.assertRaises(ValueError, locks.lock_all, "text")
        self.assertRaises(ValueError, locks.lock_all, ["a", "a"])

    def test_several_locks_of_many_threads_do_not_wait_for_each_other(self):
        locks, names = self.client(), [f"{self.name}/{n}" for n in range(4)]
        counts, errors = dict.fromkeys(names, 0), []

        def work(mine):
            try:
                for _ in range(5):
                    with locks.lock_all(mine, ttl=10):
                        for n in mine:
                            seen = counts[n]
                            time.sleep(0.0005)
                            counts[n] = seen + 1
            except distlock.Error as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(list(order),)) for order in (names, names[::-1], names[1:] + names[:1])]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([], errors)
        self.assertEqual({15}, set(counts.values()))

    def test_a_loss_while_another_lock_is_waited_for(self):
        locks, other = self.client(), self.client()
        with other.lock(self.name + "b"):
            errors = []

            def take():
                try:
                    locks.lock_all([self.name + "a", self.name + "b"], ttl=1.5, renew=False)
                except distlock.Error as e:
                    errors.append(e)

            t = threading.Thread(target=take)
            t.start()
            t.join()
        self.assertIsInstance(errors[0], distlock.Lost)

    def test_reentrant(self):
        locks, other = self.client(), self.client()
        with locks.lock(self.name) as outer:
            with locks.lock(self.name, reentrant=True) as inner:
                self.assertEqual(outer.fence, inner.fence)
            self.assertRaises(distlock.Lost, inner.check)
            outer.check()
            self.assertIsNone(other.try_lock(self.name, reentrant=True))
            self.assertRaises(distlock.Invalid, locks.lock, self.name, reentrant=True, mode="read")
            answers = []
            t = threading.Thread(target=lambda: answers.append(locks.try_lock(self.name, reentrant=True)))
            t.start()
            t.join()
            self.assertEqual([None], answers)  # another thread has it not
        inner = locks.lock(self.name, reentrant=True)
        innermost = locks.lock(self.name, reentrant=True)
        inner.release()
        self.assertTrue(other.locked(self.name))  # the last one ends it
        innermost.release()
        self.assertFalse(other.locked(self.name))

    def test_min_hold(self):
        locks, other = self.client(), self.client()
        start = time.monotonic()
        lease = locks.lock(self.name, ttl=3, min_hold=4)
        lease.release()
        self.assertRaises(distlock.Lost, lease.check)
        early = other.try_lock(self.name)
        self.assertTrue(early is None or time.monotonic() - start >= 4)  # a slow machine may come late
        (early or other.lock(self.name)).release()
        self.assertGreaterEqual(time.monotonic() - start, 4)
        self.assertRaises(ValueError, locks.lock, self.name, ttl=1, min_hold=2, renew=False)

    def test_min_hold_outlives_the_process(self):
        start = time.monotonic()
        p = self.program("with locks.lock(name, ttl=6, min_hold=60): pass\n")
        p.communicate()
        locks = self.client()
        left = locks.holder(self.name).left
        self.assertGreater(left, 60 - (time.monotonic() - start) - 0.5)
        self.assertEqual(0, p.returncode)

    def test_guard(self):
        locks, other = self.client(), self.client()

        @locks.guard(self.name, ttl=5)
        def f(x):
            "doc"
            return x, other.try_lock(self.name)

        self.assertEqual((3, None), f(3))
        self.assertEqual("doc", f.__doc__)
        self.assertFalse(other.locked(self.name))

        async def g():
            pass

        self.assertRaises(TypeError, locks.guard(self.name), g)

    def test_elect(self):
        locks, other = self.client(), self.client()
        terms = []

        class Enough(Exception):
            pass

        def lead(lease):
            terms.append(lease.fence)
            self.assertIsNone(other.try_lock(self.name))
            if len(terms) == 2:
                raise Enough
            self.broken(lease)
            self.assertTrue(lease.lost.wait(60))
            raise ZeroDivisionError

        with self.assertLogs("distlock") as logged:
            self.assertRaises(Enough, locks.elect, self.name, lead, ttl=9)
        self.assertIn("ZeroDivisionError", "".join(logged.output))
        self.assertLess(terms[0], terms[1])
        self.assertFalse(other.locked(self.name))

    def test_close_ends_waits_and_leases(self):
        locks, other = self.client(), self.client()
        errors = []

        def wait():
            try:
                locks.lock(self.name)
            except distlock.Error as e:
                errors.append(e)

        held = other.lock(self.name)
        lease = locks.lock(self.name + "2")
        t = threading.Thread(target=wait)
        t.start()
        eventually(lambda: locks._worker.client._attempts)
        locks.close()
        t.join()
        self.assertIsInstance(errors[0], distlock.Unavailable)
        self.assertTrue(lease.lost.is_set())
        self.assertRaises(distlock.Lost, lease.check)
        self.assertRaises(distlock.Lost, lease.release)
        self.assertFalse(other.locked(self.name + "2"))
        self.assertRaises(distlock.Unavailable, locks.lock, "x")
        held.release()
        self.free()

    def test_events(self):
        locks, other = self.client(), self.client()

        def fails(event):
            raise ValueError

        with distlock.Locks(self.url, on_event=fails) as quiet, self.assertLogs("distlock", "ERROR") as logged:
            quiet.lock(self.name).release()
            eventually(lambda: logged.output)
        held = other.lock(self.name)

        def release():
            eventually(lambda: locks._worker and locks._worker.client._attempts)
            time.sleep(0.2)
            held.release()

        releaser = threading.Thread(target=release)
        releaser.start()
        locks.lock(self.name, wait=60).release()
        releaser.join()
        eventually(lambda: len(self.heard("released")) == 2)
        self.assertEqual(2, len(self.heard("taken")))
        self.assertGreaterEqual(max(e.seconds for e in self.heard("waited")), 0.1)
        self.assertRaises(distlock.Invalid, locks.lock, "a" * 2049)
        self.name = "a" * 2049
        eventually(lambda: self.heard("failed"))

    def test_one_thread_for_all_leases(self):
        before = set(threading.enumerate())
        with distlock.Locks(self.url) as locks:
            leases = [locks.lock(f"{self.name}/{n}") for n in range(20)]
            self.assertEqual(1, len(set(threading.enumerate()) - before))
            for lease in leases:
                lease.release()
        eventually(lambda: not set(threading.enumerate()) - before, "the end of the thread")

    def test_a_client_that_nobody_has_ends(self):
        before = set(threading.enumerate())
        locks = distlock.Locks(self.url)
        locks.lock(self.name).release()
        del locks

        def ended():
            gc.collect()
            return not set(threading.enumerate()) - before

        eventually(ended, "the end of the thread")


if __name__ == "__main__":
    unittest.main()
