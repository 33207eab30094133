"""Tests that nothing is left of a lease that is forgotten, and of a program that is cut short."""

import logging
import os
import sys
import time
import unittest

import distlock
from serving import ServedTest, eventually, fork


class CutShortTest(ServedTest):
    def test_a_forgotten_lease_is_released_and_told(self):
        locks = self.client()
        with self.assertLogs("distlock", "WARNING"):
            locks.lock(self.name)
            eventually(lambda: self.heard("forgotten"))
        self.free()
        lease = locks.lock(self.name)
        with lease as view:
            pass
        del lease
        self.assertRaises(distlock.Lost, view.check)
        self.assertEqual(1, len(self.heard("forgotten")))

    def test_a_fork(self):
        locks = self.client()
        with locks.lock(self.name, ttl=9) as lease, locks.lock_all([self.name + "all"]) as leases:
            loss = lease.lost
            child = fork()
            if child == 0:
                ok = lease.lost.is_set() and loss.is_set() and leases.lost.is_set() and lease.remaining() == 0
                ok = ok and locks.try_lock(self.name) is None  # by a thread and connections of its own
                with locks.lock(self.name + "child"):
                    ok = ok and locks.locked(self.name)
                os._exit(0 if ok else 1)
            self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            time.sleep(10)  # longer than the TTL
            lease.check()
        self.assertFalse(locks.locked(self.name + "child"))

    def test_the_end_of_the_interpreter(self):
        locks = self.client()
        p = self.program("lease = locks.lock(name, ttl=60)\nprint('held', flush=True)\n")
        self.assertEqual(("held\n", None), p.communicate())
        self.assertEqual(0, p.returncode)
        self.assertIsNone(locks.holder(self.name))
        p = self.program(
            "taken = threading.Event()\ndef work():\n  with locks.lock(name, ttl=60):\n    taken.set(); time.sleep(100)\n"
            "threading.Thread(target=work, daemon=True).start()\ntaken.wait()\n"
        )
        p.communicate()
        self.assertIsNotNone(locks.holder(self.name))  # its daemon thread may have worked on

    def test_ctrl_c_in_a_wait(self):
        locks = self.client()
        with locks.lock(self.name):
            p = self.program("try:\n  print('begins', flush=True)\n  locks.lock(name)\nexcept KeyboardInterrupt: print('interrupted')\n")
            p.stdout.readline()
            time.sleep(0.3)
            p.send_signal(2)
            self.assertEqual("interrupted\n", p.communicate()[0])
        self.free()

    def interrupted(self, step):
        """Interrupts with locks.lock(…) at each instruction, but for those between. Nothing is left."""
        logging.getLogger("distlock").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("distlock").setLevel, logging.NOTSET)
        locks, at, names = self.client(), 1, []
        locks.lock(self.name).release()
        while True:
            name, count = f"{self.name}/{at}", 0
            names.append(name)

            def trace(frame, event, _):
                nonlocal count
                if "distlock" not in frame.f_code.co_filename:
                    return None
                frame.f_trace_opcodes = True
                count += 1
                if count == at:
                    raise KeyboardInterrupt
                return trace

            over = False
            try:
                sys.settrace(trace)
                try:
                    with locks.lock(name, ttl=20, wait=60) as lease:
                        lease.check()
                finally:
                    sys.settrace(None)
                over = True
            except (KeyboardInterrupt, SystemError):  # Python 3.9 makes one of the other in isinstance
                pass
            if over and count < at:
                break
            at += step
        self.assertGreater(at, 300)
        eventually(lambda: not locks._worker.client.holds and not locks._worker.client._tasks, "the end of all holds")
        self.assertEqual([], [n for n in names if locks.locked(n)])

    def test_an_interrupt_leaves_nothing(self):
        self.interrupted(7)

    def test_an_interrupted_wait_for_the_loss_stops_no_renewal(self):
        locks, leases, at = self.client(), [], 1
        while True:
            leases.append(locks.lock(f"{self.name}/{at}", ttl=3, renew=False))
            count = 0

            def trace(frame, event, _):
                nonlocal count
                frame.f_trace_opcodes = True
                count += 1
                if count == at:
                    raise KeyboardInterrupt
                return trace

            over = False
            try:
                sys.settrace(trace)
                try:
                    leases[-1].lost.wait(0)
                finally:
                    sys.settrace(None)
                over = True
            except (KeyboardInterrupt, RuntimeError, SystemError):  # as above
                pass
            if over and count < at:
                break
            at += 3
        self.assertGreater(at, 20)
        eventually(lambda: all(lease.lost.is_set() for lease in leases), "the loss")


if __name__ == "__main__":
    unittest.main()
