"""Tests what a client does when hosts are off, servers end, and connections break."""

import threading
import time
import unittest
import unittest.mock

import distlock
from serving import Off, ServedTest, eventually


class HostsTest(ServedTest):
    def test_a_host_that_is_off_costs_about_a_second_once(self):
        for how in "refused", "reset", "half open", "silent":
            with self.subTest(how):
                off, late = Off(self, how), threading.Event()
                locks = self.client(off.url, self.url)
                timer = threading.Timer(20, late.set)  # less than the time for which a request waits
                timer.start()
                lease = locks.lock(self.name, ttl=30)
                self.assertFalse(late.is_set())
                timer.cancel()
                before = off.connections
                lease.release()
                locks.lock(self.name).release()
                self.assertEqual(before, off.connections)  # the other one is remembered

    def test_the_name_of_a_host_is_looked_up(self):
        port = self.url.rsplit(":", 1)[1]
        with self.client(f"http://localhost:{port}").lock(self.name):
            pass
        with self.client("http://no-such-host.invalid:1", self.url).lock(self.name):
            pass
        with self.assertRaisesRegex(distlock.Unavailable, "name of the host"):
            self.client("http://no-such-host.invalid:1").lock(self.name, wait=0)
        p = self.program("lease = locks.lock(name, ttl=60)\n", f"http://localhost:{port}")
        p.communicate()
        self.assertFalse(self.client().locked(self.name))  # released at the end of the interpreter

    def test_a_server_that_drains_and_one_that_was_restarted(self):
        first, second = self.serve(), self.serve()
        locks = self.client(first.url, second.url)
        with locks.lock(self.name, ttl=30) as lease:
            first.restart()  # all connections are stale
            lease.extend(40)
            first.kill(15)
            lease.extend(41)
        self.free()

    def test_a_waiter_whose_server_stops_goes_to_the_next(self):
        first, second = self.serve(), self.serve()
        locks, other = self.client(first.url, second.url), self.client()
        held = other.lock(self.name)
        done = threading.Event()

        def wait():
            locks.lock(self.name).release()
            done.set()

        t = threading.Thread(target=wait)
        t.start()
        eventually(lambda: locks._worker and locks._worker.client._attempts)
        time.sleep(0.2)
        first.process.send_signal(19)
        held.release()
        for _ in range(300):  # 15 s, less than the 20 s for which a request waits, and more on a machine that is slow
            if done.wait(0.05):
                break
        self.assertTrue(done.is_set())
        t.join()
        first.process.send_signal(18)

    @unittest.mock.patch("distlock._servers.Servers.open", lambda *_: None)  # as where a proxy passes on no connection of calls
    def test_the_pool_is_bounded(self):
        locks, other = self.client(connections=2), self.client()
        held = other.lock(self.name)
        threads = [threading.Thread(target=lambda: locks.lock(self.name).release()) for _ in range(6)]
        for t in threads:
            t.start()
        eventually(lambda: locks._worker and len(locks._worker.client._servers.waits._queue) == 4, "the wait for a slot")
        self.assertLessEqual(len(locks._worker.client._servers._servers[0]._open), 4)
        locks.lock(self.name + "free").release()  # at once, though all slots are taken
        self.assertIsNone(locks.try_lock(self.name))
        with self.assertRaises(distlock.Held):
            locks.lock(self.name, wait=0.1)
        held.release()
        for t in threads:
            t.join()


if __name__ == "__main__":
    unittest.main()
