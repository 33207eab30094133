"""Tests with faults that take long: killed and stopped processes, a thousand leases, an interrupt at every instruction, and the
installed package. python3 -m unittest discover -s tests -p 'long_*.py' runs them."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import distlock
import test_cut_short
from serving import ServedTest


class InterruptTest(ServedTest):
    interrupted = test_cut_short.CutShortTest.interrupted

    def test_an_interrupt_at_any_instruction_leaves_nothing(self):
        self.interrupted(1)


class FaultTest(ServedTest):
    def test_a_thousand_leases(self):
        locks = self.client()
        threads = threading.active_count()
        leases = [locks.lock(f"{self.name}/{n}", ttl=12) for n in range(1000)]
        self.assertEqual(threads + 2, threading.active_count())  # the worker, and the one of on_event
        time.sleep(13)
        for lease in leases:
            lease.check()
        self.assertLessEqual(len(locks._worker.client._servers._servers[0]._open), 3)
        self.assertEqual([], self.heard("lost"))
        for lease in leases:
            lease.release()
        self.assertFalse(any(locks.locked(lease.name) for lease in leases))

    def test_a_client_that_is_killed_leaves_the_lock_for_its_ttl(self):
        p = self.program("lease = locks.lock(name, ttl=6); print('held', flush=True); time.sleep(100)\n")
        p.stdout.readline()
        time.sleep(7)
        self.assertTrue(self.client().locked(self.name))
        p.send_signal(signal.SIGKILL)
        p.communicate()
        self.free()

    def test_a_client_that_was_stopped_has_lost_the_lock(self):
        p = self.program(
            "told = threading.Event()\n"
            "lease = locks.lock(name, ttl=1.5, on_lost=lambda l: told.set()); print('held', flush=True)\n"
            "while True:\n  try: lease.check()\n  except distlock.Lost: break\n  time.sleep(.01)\n"
            "print(lease.lost.is_set(), told.wait(60))\n"
        )
        p.stdout.readline()
        p.send_signal(signal.SIGSTOP)
        self.free()
        p.send_signal(signal.SIGCONT)
        self.assertEqual("True True\n", p.communicate()[0])

    def test_a_server_that_is_stopped_loses_no_lease(self):
        first, second = self.serve(), self.serve()
        locks = self.client(first.url, second.url)
        leases = [locks.lock(f"{self.name}/{n}", ttl=15) for n in range(50)]
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(20)
        for lease in leases:
            lease.check()
        first.process.send_signal(signal.SIGCONT)
        for lease in leases:
            lease.release()

    def test_a_server_killed_every_second(self):
        servers = [self.serve(), self.serve()]
        locks, others = self.client(*(s.url for s in servers)), self.client(*(s.url for s in reversed(servers)))
        held = [locks.lock(f"{self.name}/{n}", ttl=15) for n in range(50)]
        count, inside, errors, stop = [0], threading.Lock(), [], threading.Event()

        def work(mine):
            while not stop.is_set():
                try:
                    with mine.lock(self.name, ttl=15) as lease:
                        if not inside.acquire(blocking=False):
                            errors.append("two have the lock")
                            return
                        lease.check()
                        count[0] += 1
                        inside.release()
                except distlock.Error as e:
                    errors.append(e)

        threads = [threading.Thread(target=work, args=(c,)) for c in (locks, others) for _ in range(3)]
        for t in threads:
            t.start()
        n = 0
        while not errors and (n < 20 or count[0] <= 100):  # a slow machine has fewer turns a second
            time.sleep(1)
            servers[n % 2].restart()
            n += 1
        stop.set()
        for t in threads:
            t.join()
        self.assertEqual([], errors)
        for lease in held:
            lease.check()
            lease.release()


class PackageTest(ServedTest):
    def test_the_wheel_works_in_an_empty_environment(self):
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        built = subprocess.run([here + "/package", "v9.8.7", self.folder], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(["distlock-9.8.7.tar.gz", "distlock-9.8.7-py3-none-any.whl"], [os.path.basename(b) for b in built])
        python = self.folder + "/venv/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder + "/venv"], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-warn-script-location", built[1]]
        subprocess.run(pip, check=True)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        for example in "example.py", "example_aio.py":
            with open(f"{here}/{example}") as f:
                text = f.read().replace("http://localhost:7077", self.url)
            run = subprocess.run([python, "-W", "error", "-c", text], env=env, capture_output=True, text=True, check=True)
            self.assertIn("fence ", run.stdout)
        where = subprocess.run(
            [python, "-c", "import distlock, importlib.metadata as m, os; print(distlock.__file__, m.version('distlock'), "
             "os.path.exists(os.path.dirname(distlock.__file__) + '/py.typed'), m.requires('distlock'))"],
            env=env, capture_output=True, text=True, check=True).stdout.split()
        self.assertTrue(where[0].startswith(self.folder))
        self.assertEqual(["9.8.7", "True", "None"], where[1:])


if __name__ == "__main__":
    unittest.main()
