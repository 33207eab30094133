"""Locks of a distlock server, for programs in Python 3.9 or later, with the standard library only.

    locks = distlock.Locks("http://127.0.0.1:7077")
    with locks.lock("report", ttl=30, wait=10) as lease:
        write(report, fence=lease.fence)

Times are in seconds. README.md says what holds and what does not.
"""

import http.client
import json
import math
import os
import random
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import uuid
import weakref

_POLL = 20.0  # seconds for which one request waits: less than a server's limit, and than proxies allow
_MOST = 1 << 20  # bytes of an answer
_leases = weakref.WeakSet()  # of this process


class Error(Exception):
    """The base of all errors here."""


class Held(Error):
    """Others hold the lock. holders has what is known of them: mode, fence, held_ms, left_ms, meta."""

    def __init__(self, name, holders):
        who = ", ".join(_who(h.get("meta") or {}) for h in holders)
        super().__init__(f"{name!r} is held by {who or 'another'}")
        self.holders = holders


def _who(meta):
    # Others may have put anything into it.
    program, pid, host = ("".join(c if c.isprintable() else "?" for c in str(meta.get(k, "?")))
                          for k in ("program", "pid", "host"))
    return f"{program} (pid {pid} on {host})"


class Lost(Error):
    """The lock was lost: others may hold it now."""


class Invalid(Error):
    """The server does not accept the request, or its backend can't do that."""


class Denied(Error):
    """The token is missing, wrong, or has no right to this lock."""


class Unavailable(Error):
    """No server gave an answer in time. The outcome is not known, but the lock is not used."""


_FINAL = {"invalid": Invalid, "unsupported": Invalid, "denied": Denied, "other": Unavailable}
_FACTS = {"held", "lost", "invalid", "unsupported", "denied", "unsent"}


class Locks:
    """The locks of a server, or of several servers before the same backend. It is safe for threads.

    urls are such as http://host:7077, https://host or http+unix:///run/distlock.sock. tls is an ssl.SSLContext
    for https. meta is shown to others beside host, pid and program.
    """

    def __init__(self, *urls, token=None, tls=None, meta=None):
        if not urls:
            raise ValueError("Locks wants the URL of a server")
        self._urls = [_parse(u) for u in urls]
        self._at = 0  # the server in use
        self._backend = None  # the name of the first one seen
        self._mutex = threading.Lock()
        self._tls = tls or ssl.create_default_context()
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise ValueError("the token has characters that a header can't have")
            self._headers["Authorization"] = "Bearer " + token
        program = os.path.basename(sys.argv[0] or "python")
        self._meta = {"host": socket.gethostname(), "pid": str(os.getpid()), "program": program, **(meta or {})}

    def lock(self, name, ttl=30.0, wait=None, mode="exclusive", limit=None, on_lost=None):
        """Takes a lock and returns its Lease, which is a context manager.

        ttl is how long the lock outlives this process if it dies. wait is for how long to wait: None is
        for ever, 0 is one try. mode is exclusive, write or read; limit makes it a semaphore with so
        many permits. on_lost(lease) is called in a thread of its own when the lease is lost.

        Raises Held, Invalid, Denied or Unavailable.
        """
        if not isinstance(ttl, (int, float)) or not 0 < ttl < math.inf:
            raise ValueError(f"ttl is {ttl}: want seconds, more than 0")
        if wait is not None and (not isinstance(wait, (int, float)) or not wait >= 0):
            raise ValueError(f"wait is {wait}: want seconds, or None to wait for ever")
        hold = {"name": name, "owner": str(uuid.uuid4()), "mode": "counted" if limit is not None else mode}
        request = dict(hold, ttl_ms=math.ceil(ttl * 1000), meta=self._meta)
        if limit is not None:
            request["limit"] = limit
        end = math.inf if wait is None else time.monotonic() + wait
        tries = failures = 0
        taken = False  # whether a server may have a hold of this owner, or a place in the queue
        unsure = False  # whether a request of this owner had no answer
        try:
            while True:
                start = time.monotonic()
                poll = max(0.0, min(_POLL, end - start))
                before, taken = taken, True  # also if the call is interrupted
                kind, answer = self._call("acquire", dict(request, wait_ms=int(poll * 1000)), poll + _timeout(ttl))
                if poll == 0 and kind not in ("ok", "unknown"):
                    taken = before
                if kind == "ok":
                    lease = _lease(self, hold, ttl, start, answer, on_lost)
                    if lease is not None:
                        return lease
                    kind, answer = "unknown", {"detail": "the answer came too late"}
                unsure = unsure or kind == "unknown"
                if answer.get("spent") is True:  # the owner was released, perhaps late: it must make no other attempt
                    if unsure:
                        self._release(hold, time.monotonic() + _timeout(ttl), _timeout(ttl))
                    hold["owner"] = request["owner"] = str(uuid.uuid4())
                    taken = unsure = False
                if kind in _FINAL:
                    raise _FINAL[kind](answer["detail"])
                tries += 1
                failures = 0 if kind == "held" else failures + 1
                over = time.monotonic() >= end
                if over and kind == "held":
                    raise Held(name, answer.get("holders") or [])
                if over and tries >= 2 * len(self._urls):
                    raise Unavailable(answer["detail"])
                _sleep(failures, end)
        except BaseException:
            if taken:
                self._release(hold, time.monotonic() + _timeout(ttl), _timeout(ttl))
            raise

    def _release(self, hold, until, timeout):
        """Releases until an answer, for a few tries. Returns what became of it."""
        unknown = False
        for n in range(2 + 2 * len(self._urls)):
            if n:
                _sleep(n, until)
            if n and time.monotonic() >= until:
                break
            kind, answer = self._call("release", hold, timeout)
            if kind == "lost" and unknown:
                kind = "ok"  # an earlier request has released it
            if kind not in ("unknown", "unsent", "other"):
                return kind, answer
            unknown = unknown or kind == "unknown"
        return "unknown", answer

    def _renew(self, hold, ttl_ms, timeout):
        kind, answer = self._call("renew", {"holds": [dict(hold, ttl_ms=ttl_ms)]}, timeout)
        return answer["outcome"] if kind == "ok" else "unknown"

    def _call(self, call, body, timeout):
        """Sends one request to the server in use, and goes to the next one if that gives no answer."""
        at = self._at
        kind, answer = self._exchange(self._urls[at], call, body, timeout)
        if call == "renew" and kind == "ok" and answer.get("outcome") in (None, "unknown", "unsent"):
            kind = "unknown"  # the server works, and its backend does not
        if kind in ("unknown", "unsent", "other"):
            with self._mutex:
                if self._at == at:
                    self._at = (at + 1) % len(self._urls)
        return kind, answer if isinstance(answer.get("detail", ""), str) else {"detail": "?"}

    def _exchange(self, url, call, body, timeout):
        """Returns what the answer states as a fact, or unknown; unsent if nothing was taken."""
        connection = _connect(url, self._tls, timeout)
        headers = dict(self._headers, **{"Distlock-Request": uuid.uuid4().hex})
        if self._backend is not None:
            headers["Distlock-Backend"] = self._backend
        sent = False
        try:
            connection.connect()
            sent = True
            base = "" if url.scheme == "http+unix" else url.path.rstrip("/")
            connection.request("POST", f"{base}/v1/{call}", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read(_MOST)
            try:
                answer = json.loads(text) if response.status != 204 else {}
            except (ValueError, RecursionError):
                return "unknown", {"detail": f"{_show(url)}: status {response.status}, and no JSON"}
        except (OSError, http.client.HTTPException, ValueError) as e:
            return "unknown" if sent else "unsent", {"detail": f"{_show(url)}: {type(e).__name__}"}
        finally:
            connection.close()
        if not isinstance(answer, dict):
            answer = {}
        if response.getheader("Distlock-Request") != headers["Distlock-Request"]:  # a proxy's, or to another request
            return "unknown", {"detail": f"{_show(url)}: status {response.status}"}
        return self._judge(url, response, answer)

    def _judge(self, url, response, answer):
        kind, backend = answer.get("distlock"), response.getheader("Distlock-Backend")
        answer.setdefault("detail", f"{_show(url)}: status {response.status}")
        if response.status == 421 and kind is not None:  # not the server that is meant
            return "other", {"detail": answer["detail"]}
        if backend is None:  # the server doesn't know us
            return "denied" if response.status == 401 and kind == "denied" else "unknown", {"detail": answer["detail"]}
        with self._mutex:
            self._backend = self._backend or backend
        if backend != self._backend:
            detail = f"{_show(url)} is before another backend than the first server: {backend}, not {self._backend}"
            return "other", {"detail": detail}
        if response.status in (200, 204):
            return "ok", answer
        return kind if kind in _FACTS else "unknown", answer


def _lease(locks, hold, ttl, start, answer, on_lost):
    """Makes the lease of a grant. None if it is over already, or makes no sense."""
    now = time.monotonic()
    try:
        waited = min(answer["waited_ms"] / 1000, now - start)  # no server has waited for longer than its answer took
        end = start + waited + answer["ttl_ms"] / 1000 - _margin(ttl)
        fence = int(answer["fence"])
    except (KeyError, TypeError, ValueError):
        return None
    return Lease(locks, hold, ttl, end, fence, on_lost) if now < end else None


def _lose_inherited():
    """Sets lost in a forked child, where no thread would. Other threads may have had the old events when it was forked."""
    for lease in list(_leases):
        lease.lost, lease._ended = threading.Event(), threading.Event()
        lease.lost.set()
        lease._ended.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_inherited)


class Lease:
    """A lock that is held. It is renewed until it is released or lost.

    name, fence: the lock's name, and a number that grows with each holder, for the storage to compare.
    lost: a threading.Event, which is set when the lease is lost, before another can have the lock.
    """

    def __init__(self, locks, hold, ttl, deadline, fence, on_lost):
        self.name, self.fence, self.lost = hold["name"], fence, threading.Event()
        self._locks, self._hold, self._ttl, self._on_lost = locks, hold, ttl, on_lost
        self._pid = os.getpid()  # a child of os.fork has no threads that renew, and no say in the release
        self._deadline = deadline  # of time.monotonic; only a renewal in time moves it
        self._ended = threading.Event()  # by loss or release
        self._gone = False  # the server said that it is lost
        self._mutex = threading.Lock()
        _leases.add(self)
        for work in (self._watch, self._renew):  # two, since a renewal may hang
            threading.Thread(target=work, name=f"distlock {work.__name__}", daemon=True).start()

    def __repr__(self):
        return f"<distlock.Lease {self.name!r} fence={self.fence}>"

    def remaining(self):
        """Returns for how many seconds the lease is trusted if no renewal succeeds; 0 once it has ended."""
        ended = self._ended.is_set() or self._pid != os.getpid()
        return 0.0 if ended else max(0.0, self._deadline - time.monotonic())

    def _inherited(self):
        if self._pid != os.getpid():
            raise Lost(f"{self.name!r} is the lock of the process that has forked this one")

    def check(self):
        """Raises Lost if the lease has ended. It compares the clock itself, and so needs no thread to run."""
        self._inherited()
        if self.remaining() == 0:
            self._lose()
            raise Lost(f"{self.name!r} is lost" if self.lost.is_set() else f"{self.name!r} was released")

    def release(self):
        """Releases the lock. Raises Lost if it was lost before, Unavailable if no server has confirmed it:
        then it ends with its TTL. Another call does nothing, or raises Lost again."""
        self._inherited()
        with self._mutex:
            first, lost = not self._ended.is_set(), self.lost.is_set()
            in_time = time.monotonic() < self._deadline
            if first and in_time:
                self._ended.set()
        if first and not in_time:
            self._lose()
            lost = True
        if not first and not lost:
            return
        kind, answer = "lost", {}
        if not self._gone:  # one that is lost by the clock may live on at the backend
            now, timeout = time.monotonic(), _timeout(self._ttl)
            kind, answer = self._locks._release(self._hold, now if lost else max(self._deadline, now), timeout)
        self._gone = True
        if lost or kind == "lost":
            self.lost.set()
            raise Lost(f"{self.name!r} was lost before its release")
        if kind != "ok":
            raise Unavailable(f"the release of {self.name!r} was not confirmed: {answer['detail']}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass  # the work is done, and the TTL ends the lock

    def _lose(self):
        with self._mutex:
            if self._ended.is_set():
                return
            self.lost.set()
            self._ended.set()
        if self._on_lost is not None:
            threading.Thread(target=self._on_lost, args=(self,), name="distlock on_lost", daemon=True).start()

    def _watch(self):
        # At most a second, since before Python 3.11 a wait may follow the wall clock.
        while not self._ended.wait(max(0.0, min(self._deadline - time.monotonic(), 1.0))):
            if time.monotonic() >= self._deadline:
                self._lose()

    def _renew(self):
        ttl = self._ttl
        pause = max(0.0, self._deadline + _margin(ttl) - ttl * 2 / 3 - time.monotonic())
        while not self._ended.wait(pause):
            start = time.monotonic()
            kind = self._locks._renew(self._hold, math.ceil(ttl * 1000), _timeout(ttl))
            with self._mutex:
                if kind == "ok" and time.monotonic() < self._deadline:  # else it has ended, whatever the answer
                    self._deadline = max(self._deadline, start + ttl - _margin(ttl))
                if kind == "lost" and not self._ended.is_set():
                    self._gone = True
            if kind == "lost":
                self._lose()
            pause = max(0.0, start + ttl / 3 - time.monotonic()) if kind == "ok" else ttl / 30


def _margin(ttl):
    """How long before the end of the TTL a lease is lost: for clocks of different speed, and time to stop."""
    return min(ttl / 10, 1.0)


def _timeout(ttl):
    """How long one request may take, beside the time that it waits for the lock."""
    return min(ttl / 3, 5.0)


def _sleep(failures, end):
    pause = min(1.0, 0.025 * 2 ** min(failures, 10)) * random.uniform(0.5, 1)
    time.sleep(max(0.0, min(pause, end - time.monotonic())))


def _parse(url):
    u = urllib.parse.urlsplit(url)
    good = u.scheme in ("http", "https") and u.hostname or u.scheme == "http+unix" and u.path and not u.netloc
    if not good or "@" in u.netloc or u.query or u.fragment or u.port == 0:
        raise ValueError(
            "want URLs such as http://host:7077, https://host or http+unix:///run/distlock.sock; "
            "a token is an argument of its own"
        )
    return u


def _show(url):
    return f"http+unix://{url.path}" if url.scheme == "http+unix" else f"{url.scheme}://{url.netloc}"


def _connect(url, tls, timeout):
    if url.scheme == "http+unix":
        return _UnixConnection(urllib.parse.unquote(url.path), timeout)
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout, context=tls)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
