"""Tests the client for threads against a server that answers as each test says."""

import asyncio
import http.server
import json
import os
import socketserver
import tempfile
import threading
import time
import unittest
import unittest.mock

import distlock
from distlock import aio
from distlock._renewals import Renewals
from serving import fork

TOKEN = "secret-of-the-tests"


class FakeServer:
    """Answers each call by the next of its answers, and by the last one for ever after.

    An answer is (status, body), with the header of backend, if that is not None, and the one of the request; or drop; or a function
    that returns one of these.
    """

    def __init__(self, backend="fake", path=None, mixed_up=False, **answers):
        self.backend, self.answers, self.requests = backend, {"release": [(204, None)], "probe": [(200, {})], "calls": [(404, {})], **answers}, []
        fake, mutex = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer("calls" if self.path == "/v1/calls" else "probe", None)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(self.path.rsplit("/", 1)[1], body)

            def answer(self, call, body):
                with mutex:
                    fake.requests.append((call, body, self.headers))
                    rest = fake.answers[call]
                    answer = rest.pop(0) if len(rest) > 1 else rest[0]
                if callable(answer):
                    answer = answer()
                if answer is drop:
                    self.close_connection = True
                    return
                status, body = answer
                self.send_response(status)
                self.send_header("Distlock-Request", "of another" if mixed_up else self.headers["Distlock-Request"])
                if fake.backend is not None:
                    self.send_header("Distlock-Backend", fake.backend)
                text = b"" if body is None else json.dumps(body).encode()
                self.send_header("Content-Type", "application/x-ndjson" if call == "renew" and status == 200 else "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def address_string(self):
                return "a client"

            def log_message(self, *_):
                pass

        class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self.server = Unix(path, Handler) if path else http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # the client has gone
        self.url = f"http+unix://{path}" if path else f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def calls(self, call):
        return [body for c, body, _ in self.requests if c == call]


def eventually(true):
    while not true():
        time.sleep(0.001)


drop = object()
RENEWED = (200, {"index": 0, "outcome": "ok"})


def grant(ttl_ms=30_000, fence=7, waited_ms=0):
    return 200, {"fence": str(fence), "fences": "1", "ttl_ms": ttl_ms, "waited_ms": waited_ms}


def problem(status, kind, **more):
    return status, {"title": "?", "status": status, "detail": "so it is", "distlock": kind, **more}


HELD = problem(423, "held", holders=[{"mode": "exclusive", "fence": "6", "meta": {"program": "job\n", "pid": "5", "host": "h"}}])


class ClientTest(unittest.TestCase):
    def serve(self, **kw):
        server = FakeServer(**kw)
        self.addCleanup(server.close)
        return server

    def locks(self, *servers):
        return distlock.Locks(*(s if isinstance(s, str) else s.url for s in servers), token=TOKEN)

    def refused(self, error, server, **kw):
        with self.assertRaises(error) as caught:
            self.locks(server).lock("x", **kw)
        self.assertNotIn(TOKEN, repr(caught.exception))
        for body in server.calls("acquire"):
            self.assertNotIn(body["owner"], repr(caught.exception))
        return caught.exception

    def one_owner(self, server):
        self.assertEqual(1, len({body["owner"] for body in server.calls("acquire") + server.calls("release")}))

    def test_takes_and_releases(self):
        server = self.serve(acquire=[grant()])
        with self.locks(server).lock("x", ttl=30, wait=0) as lease:
            self.assertEqual(7, lease.fence)
            self.assertTrue(0 < lease.remaining() <= 29)
            lease.check()
        self.assertEqual(0, lease.remaining())
        self.assertRaises(distlock.Lost, lease.check)
        self.assertFalse(lease.lost.is_set())
        (call, body, headers), (last, *_) = [r for r in server.requests if r[0] != "calls"]
        self.assertEqual(("acquire", "release", "Bearer " + TOKEN), (call, last, headers["Authorization"]))
        self.assertEqual((30000, 0, "exclusive"), (body["ttl_ms"], body["wait_ms"], body["mode"]))
        self.assertEqual(str(os.getpid()), body["meta"]["pid"])
        self.assertNotIn(body["owner"], repr(lease))
        self.one_owner(server)
        self.assertEqual("fake", server.requests[-1][2]["Distlock-Backend"])

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            server = self.serve(path=folder + "/s", acquire=[grant()])
            with self.locks(server).lock("x"):
                pass
        self.assertEqual(1, len(server.calls("release")))

    def test_a_semaphore_and_a_reader(self):
        server = self.serve(acquire=[grant()])
        self.locks(server).lock("x", limit=3).release()
        self.locks(server).lock("x", mode="read").release()
        modes = [(b["mode"], b.get("limit")) for b in server.calls("acquire") + server.calls("release")]
        self.assertEqual([("counted", 3), ("read", None), ("counted", None), ("read", None)], modes)

    def test_held(self):
        server = self.serve(acquire=[HELD])
        error = self.refused(distlock.Held, server, wait=0)
        self.assertEqual("6", str(error.holders[0].fence))
        self.assertIn("job? (pid 5 on h)", str(error))
        self.assertEqual([], server.calls("release"))  # nothing was taken

    def test_a_waiter_that_gives_up_leaves_the_queue(self):
        server = self.serve(acquire=[HELD])
        self.refused(distlock.Held, server, wait=0.5)
        self.assertEqual(1, len(server.calls("release")))
        self.one_owner(server)

    def test_waiting_without_end_is_many_polls_by_one_owner(self):
        server = self.serve(acquire=[HELD, HELD, grant()])
        self.locks(server).lock("x").release()
        self.assertEqual([20000] * 3, [b["wait_ms"] for b in server.calls("acquire")])
        self.one_owner(server)

    def test_an_owner_that_was_released_makes_no_other_attempt(self):
        spent = problem(423, "held", spent=True)
        server = self.serve(acquire=[spent, spent, grant()])
        self.locks(server).lock("x").release()
        owners = [b["owner"] for b in server.calls("acquire")]
        self.assertEqual(3, len(set(owners)))
        self.assertEqual(owners[2:], [b["owner"] for b in server.calls("release")])
        server = self.serve(acquire=[spent])
        self.refused(distlock.Held, server, wait=0.05)
        self.assertEqual([], server.calls("release"))  # nothing was taken

    def test_an_owner_that_was_released_perhaps_is_released_again(self):
        for first in [drop, problem(423, "held", spent=True)], [problem(504, "unknown", spent=True)]:
            server = self.serve(acquire=first + [grant()])
            self.locks(server).lock("x").release()
            owners = [b["owner"] for b in server.calls("acquire")]
            self.assertEqual(2, len(set(owners)))
            self.assertEqual([owners[0], owners[-1]], [b["owner"] for b in server.calls("release")])

    def test_final_errors(self):
        for status, kind, error in (400, "invalid", distlock.Invalid), (501, "unsupported", distlock.Invalid), (403, "denied", distlock.Denied):
            self.refused(error, self.serve(acquire=[problem(status, kind)]))
        self.refused(distlock.Denied, self.serve(backend=None, acquire=[problem(401, "denied")]))

    def test_an_acquire_without_answer_is_repeated(self):
        server = self.serve(acquire=[drop, grant()])
        self.locks(server).lock("x", wait=0).release()
        self.assertEqual(2, len(server.calls("acquire")))
        self.one_owner(server)

    def test_giving_up_releases(self):
        server = self.serve(acquire=[drop])
        self.refused(distlock.Unavailable, server, wait=0)
        self.assertEqual(1, len(server.calls("release")))
        self.one_owner(server)

    def test_what_a_proxy_says_is_no_fact(self):
        for answer in grant(), problem(410, "lost"), problem(423, "held", spent=True), (404, None), (200, ["a list"]):
            server = self.serve(backend=None, acquire=[answer])
            self.refused(distlock.Unavailable, server, wait=0)
            self.one_owner(server)
        for answer in (410, {}), (423, {"distlock": "odd"}), (200, {"fence": "x"}), (200, "text"):
            self.refused(distlock.Unavailable, self.serve(acquire=[answer]), wait=0)

    def test_an_answer_to_another_request_is_no_fact(self):
        for answer in grant(), HELD, problem(503, "unsent"), problem(403, "denied"):
            self.refused(distlock.Unavailable, self.serve(mixed_up=True, acquire=[answer]), wait=0)

    def test_a_grant_that_comes_too_late_is_not_used(self):
        server = self.serve(acquire=[grant(ttl_ms=1), grant(fence=8)])
        with self.locks(server).lock("x") as lease:
            self.assertEqual(8, lease.fence)
        self.one_owner(server)

    def test_the_next_server(self):
        draining = self.serve(acquire=[problem(503, "unsent")], release=[problem(503, "unsent")])
        good = self.serve(acquire=[grant()])
        with self.locks("http://127.0.0.1:1", draining, good).lock("x", wait=0):
            pass
        self.assertEqual((1, 0), (len(draining.calls("acquire")), len(draining.calls("release"))))
        self.assertEqual((1, 1), (len(good.calls("acquire")), len(good.calls("release"))))

    def test_no_server(self):
        with self.assertRaises(distlock.Unavailable):
            self.locks("http://127.0.0.1:1").lock("x", wait=0)

    def test_another_backend_is_an_error(self):
        server = self.serve(acquire=[grant()])
        other = self.serve(backend="other", acquire=[grant()])
        locks = self.locks(server, other)
        locks.lock("x").release()
        server.answers["acquire"] = [problem(503, "unsent")]
        with self.assertRaisesRegex(distlock.Unavailable, "another backend.*other, not fake"):
            locks.lock("x")
        self.refused(distlock.Unavailable, self.serve(backend=None, acquire=[problem(421, "unsent")]))

    def test_loss_is_noticed_while_a_renewal_hangs(self):
        answer, answered = threading.Event(), threading.Event()
        self.addCleanup(answer.set)

        def renew():
            answer.wait()
            answered.set()
            return RENEWED

        server = self.serve(acquire=[grant(ttl_ms=300)], renew=[renew])
        calls = []
        start = time.monotonic()
        lease = self.locks(server).lock("x", ttl=0.3, on_lost=calls.append)
        self.assertTrue(lease.lost.wait(60))
        self.assertGreaterEqual(time.monotonic() - start, 0.27)
        self.assertRaises(distlock.Lost, lease.check)
        self.assertRaises(distlock.Lost, lease.release)
        eventually(lambda: server.calls("release"))  # the backend may have it for longer
        eventually(lambda: calls)
        self.assertIs(lease, calls[0])
        answer.set()  # too late
        answered.wait()
        self.assertEqual(0, lease.remaining())
        self.assertRaises(distlock.Lost, lease.check)

    def test_a_renewal_that_is_answered_too_late_revives_nothing(self):
        answered = threading.Event()

        def renew():
            time.sleep(0.7)
            answered.set()
            return RENEWED

        server = self.serve(acquire=[grant(ttl_ms=1_500)], renew=[renew])  # trusted for half a second
        with unittest.mock.patch.object(Renewals, "_has_ended", lambda *_: False):  # as if it did not look at the clock
            lease = self.locks(server).lock("x", ttl=12)
        eventually(lambda: answered.is_set() or lease.remaining() == 0 and not server.calls("renew"))
        time.sleep(0.1)  # were that too short, the test would only see less
        self.assertRaises(distlock.Lost, lease.check)
        self.assertTrue(lease.lost.is_set())

    # A lease of 60 s whose server grants 40 s is renewed at once.
    RENEWED_AT_ONCE = grant(ttl_ms=40_000)

    def test_a_stated_loss(self):
        server = self.serve(acquire=[self.RENEWED_AT_ONCE], renew=[(200, {"index": 0, "outcome": "lost"})])
        with self.assertRaises(distlock.Lost):
            with self.locks(server).lock("x", ttl=60) as lease:
                self.assertTrue(lease.lost.wait(30))
        self.assertEqual([], server.calls("release"))

    def test_renewal(self):
        answers = [drop, (410, {}), problem(410, "lost"), (200, {"index": 0, "outcome": "unknown"}), RENEWED]
        server = self.serve(acquire=[grant(ttl_ms=8_100)], renew=answers)  # at once, for 12 s
        with self.locks(server).lock("x", ttl=12) as lease:
            while lease.remaining() < 9:  # with the margin, the grant's was 7.1 s
                lease.check()
                time.sleep(0.001)
            self.assertLessEqual(lease.remaining(), 11)
        self.assertEqual(1, len(server.calls("release")))

    def test_renewal_by_the_next_server(self):
        for outcome in ("unknown", "unsent"):
            bad = self.serve(acquire=[self.RENEWED_AT_ONCE], renew=[(200, {"index": 0, "outcome": outcome})])
            good = self.serve(renew=[RENEWED])
            with self.locks(bad, good).lock("x", ttl=60) as lease:
                while not good.calls("renew"):
                    lease.check()
                    time.sleep(0.001)

    def test_trust_counts_from_before_the_request(self):
        def late(answer):
            time.sleep(0.5)
            return answer

        server = self.serve(acquire=[lambda: late(grant(ttl_ms=8_100))], renew=[lambda: late(RENEWED)])
        with self.locks(server).lock("x", ttl=12) as lease:  # is renewed at once
            self.assertLessEqual(lease.remaining(), 7.1 - 0.5)
            while lease.remaining() < 8:
                lease.check()
                time.sleep(0.001)
            self.assertLessEqual(lease.remaining(), 11 - 0.5)

    def test_trust_counts_from_the_end_of_the_wait(self):
        def late():
            time.sleep(0.5)
            return grant(waited_ms=400)

        start = time.monotonic()
        with self.locks(self.serve(acquire=[late])).lock("x", ttl=30) as lease:
            left = lease.remaining()
            self.assertLessEqual(left, 29 + 0.4 - 0.5)
            self.assertGreaterEqual(left + time.monotonic() - start, 29 + 0.4)
        # A wait that was longer than the whole call is not believed.
        with self.locks(self.serve(acquire=[grant(waited_ms=20_000)])).lock("x", ttl=30) as lease:
            self.assertLessEqual(lease.remaining(), 29)

    def test_a_forked_child_has_no_part_in_a_lease(self):
        server = self.serve(acquire=[grant()])
        with self.locks(server).lock("x") as lease:
            child = fork()
            if child == 0:
                lost = 0
                for call in lease.check, lease.release, lambda: lease.__exit__(None):
                    try:
                        call()
                    except distlock.Lost:
                        lost += 1
                os._exit(lost if lease.remaining() == 0 and lease.lost.is_set() else 100)
            self.assertEqual(3, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            lease.check()
            self.assertFalse(lease.lost.is_set())
            self.assertEqual([], server.calls("release"))
        self.assertEqual(1, len(server.calls("release")))

    def test_a_release_without_answer_is_repeated(self):
        server = self.serve(acquire=[grant()], release=[drop, problem(503, "unknown"), problem(410, "lost")])
        self.locks(server).lock("x").release()  # the first one has released it
        self.assertEqual(3, len(server.calls("release")))

    def test_an_attempt_that_is_given_up_is_released_until_an_answer(self):
        answer = threading.Event()
        self.addCleanup(answer.set)
        server = self.serve(acquire=[lambda: answer.wait() and drop], release=[drop, drop, (204, None)])

        async def main():
            async with aio.Locks(server.url) as locks:
                attempt = asyncio.ensure_future(locks.try_lock("x"))
                while not server.calls("acquire"):
                    await asyncio.sleep(0.001)
                attempt.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await attempt
                while locks._client._tasks:
                    await asyncio.sleep(0.001)

        asyncio.run(main())
        self.assertEqual(3, len(server.calls("release")))

    def test_a_release_that_is_never_confirmed(self):
        server = self.serve(acquire=[grant()], release=[drop])
        locks = self.locks(server)
        with locks.lock("x"):  # no error: the work is done
            pass
        with self.assertRaises(distlock.Unavailable):
            locks.lock("x").release()

    def test_lost_before_the_release(self):
        server = self.serve(acquire=[grant()], release=[problem(410, "lost")])
        with self.assertRaises(distlock.Lost):
            with self.locks(server).lock("x"):
                pass
        with self.assertRaisesRegex(ValueError, "of the work"):
            with self.locks(server).lock("x"):
                raise ValueError("of the work")

    def test_wrong_arguments(self):
        for url in "redis://h", "http://user:hidden@h", "localhost:1", "http+unix://h/s", "unix:/s", "http://h?a=b":
            with self.assertRaisesRegex(ValueError, "want URLs such as http://") as caught:
                distlock.Locks("http://good", url)
            self.assertNotIn("hidden", str(caught.exception))
            self.assertIn(url.split("?")[0].rsplit("@")[-1], str(caught.exception))
        for bad in {"token": "a\nb"}, {"token": "ü"}, {"token": ""}, {"token": 5}, {"meta": "x"}, {"meta": {"a": 1}}, {"on_event": 5}, {"tls": True}:
            self.assertRaises(ValueError, distlock.Locks, "http://h", **bad)
        self.assertRaises(ValueError, distlock.Locks)
        locks = distlock.Locks("http://h")
        for bad, right in (
            ({"wait": -1}, "wait is -1: want seconds"), ({"wait": "1s"}, "wait is '1s'"),
            *(({"ttl": ttl}, "ttl is .*: want seconds, at least 0.1 and at most") for ttl in (0, -1, 0.03, float("nan"), float("inf"), 1e9, "30", None, True)),
            *(({"ttl": ttl}, f"ttl is {ttl} s: want at most 3600 .*; for {ttl} ms write ttl={ttl / 1000:g}") for ttl in (3601, 30_000)),
            ({"mode": None}, "mode is None: want exclusive"), ({"mode": "counted"}, "mode is"), ({"mode": "shared"}, "want exclusive, write or read"),
            ({"limit": 0}, "limit is 0: want how many"), ({"limit": "3"}, "limit is '3'"), ({"limit": 1.5}, "limit is 1.5"), ({"limit": True}, "limit is"),
            ({"limit": 3, "mode": "read"}, "mode is 'read': want none beside limit"),
            ({"meta": "x"}, "meta is 'x': want a dict"), ({"meta": {"a": 1}}, "meta has 'a': 1"), ({"meta": {1: "a"}}, "meta has 1"),
            ({"renew": "no"}, "renew is 'no': want True or False"), ({"on_lost": 5}, "on_lost is 5: want a function"),
        ):
            self.assertRaisesRegex(ValueError, right, locks.lock, "x", **bad)
        for name in 5, None, b"x":
            for call in locks.lock, locks.guard, locks.holder, lambda name: locks.lock_all(["x", name]):
                self.assertRaisesRegex(ValueError, "the name of the lock is .*: want a str", call, name)
        for call in locks.lock, locks.try_lock, locks.guard, locks.holder, lambda name: locks.lock_all(["x", name]), aio.Locks("http://h").guard:
            self.assertRaisesRegex(ValueError, "the name of the lock is empty", call, "")
        self.assertRaises(ValueError, locks.lock, "half a \ud800")
        for word, right in {
            "timeout": "wait=10.*ttl=30", "blocking": "try_lock", "blocking_timeout": "wait=", "lease_time": "ttl=", "leaseTime": "ttl=",
            "expire": "ttl=", "retryCount": "wait=", "duration": "ttl=", "shared": 'mode="read"', "permits": "limit=3", "odd": "limit, meta",
        }.items():
            for call in locks.lock, locks.try_lock, locks.guard, locks.lock_all, aio.Locks("http://h").lock, aio.Locks("http://h").guard:
                self.assertRaisesRegex(TypeError, f"{call.__name__} has no argument '{word}': .*{right}", call, "x", **{word: 1})
        self.assertRaisesRegex(ValueError, "lead is None: want a function", locks.elect, "x", None)

    def test_a_web_server_of_another_kind_is_named(self):
        server = self.serve(acquire=[(404, None)], mixed_up=True)
        with self.assertRaisesRegex(distlock.Unavailable, "/path: status 404, and not from a distlock server"):
            self.locks(server.url + "/path").lock("x", wait=0)

    def test_a_server_with_or_without_tls(self):
        server = self.serve(acquire=[grant()])
        with self.assertRaisesRegex(distlock.Unavailable, "does not speak TLS: want http://"):
            self.locks(server.url.replace("http", "https")).lock("x", wait=0)
        server.answers["acquire"] = [(400, "Client sent an HTTP request to an HTTPS server.")]
        with self.assertRaisesRegex(distlock.Unavailable, "speaks TLS: want https://"):
            self.locks(server).lock("x", wait=0)

    # A right that is withdrawn for a moment, a server that is busy, and one that a proxy does not reach.
    AWAY = [problem(403, "denied"), problem(429, "unsent"), problem(503, "unsent"), problem(503, "unknown"), drop]

    def test_a_wait_goes_on_while_the_right_is_away(self):
        server = self.serve(acquire=[grant(), *self.AWAY, grant()])
        locks = self.locks(server)
        locks.lock("x").release()
        locks.lock("x").release()
        self.assertEqual(7, len(server.calls("acquire")))
        server.answers["acquire"] = [problem(403, "denied")]
        for wait in 0, 0.1:
            self.assertRaises(distlock.Denied, locks.lock, "x", wait=wait)

    def test_a_release_goes_on_while_the_right_is_away(self):
        server = self.serve(acquire=[grant()], release=[*self.AWAY * 2, (204, None)])
        locks = self.locks(server)
        lease = locks.lock("x", ttl=300)
        self.assertRaises(distlock.Unavailable, lease.release)  # it goes on
        eventually(lambda: len(server.calls("release")) == 11)
        self.one_owner(server)
        eventually(lambda: not locks._worker.client._tasks)

    def test_a_wait_without_an_answer_is_logged(self):
        server = self.serve(acquire=[problem(503, "unknown")] * 8 + [grant()])
        with unittest.mock.patch("distlock._client.TELL", 0.3), self.assertLogs("distlock", "WARNING") as logged:
            locks = self.locks(server)
            locks.lock("x").release()
            server.answers["acquire"] = [problem(503, "unknown")] * 8 + [grant()]
            locks.lock("y").release()
        self.assertEqual(1, len(logged.output), logged.output)  # a minute
        self.assertRegex(logged.output[0], "waiting for the lock 'x', and still without an answer: so it is")

    def test_a_minimum_hold_outlives_a_process_that_is_killed(self):
        server = self.serve(acquire=[grant()])
        self.locks(server).lock("x", ttl=30, min_hold=60)
        self.locks(server).lock("x", ttl=30, min_hold=5)
        self.assertEqual([60_000, 30_000], [b["ttl_ms"] for b in server.calls("acquire")])


if __name__ == "__main__":
    unittest.main()
