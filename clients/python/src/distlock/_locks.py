"""Locks and leases for threads."""

import functools
import inspect
import ssl
import threading
import time
import weakref
from typing import Any, Callable, Iterable, List, Mapping, Optional, TypeVar, cast

from ._client import ASIDE, Client, again, failed_after_loss, standing
from ._errors import Error, Event, Held, Holder, Unavailable
from ._flag import Flag
from ._hold import Hold, nested, sorted_names
from ._leases import Lease, Leases
from ._secrets import Certificates, Token
from ._servers import Servers
from ._wire import Mode, Terms, check_call, check_meta, check_name, hinted
from ._worker import Teller, Worker, call_on_lost, process, serves

F = TypeVar("F", bound=Callable[..., Any])

_LATE_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_LATE = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)  # what they return, and other functions may, too


class Locks:
    """The locks of a server, or of several servers before the same backend. It is safe for threads.

    urls are such as http://host:7077, https://host or http+unix:///run/distlock.sock. The next one is used when one gives no
    answer, and stays in use then.

    token, or the content of token_file, is what the server knows this client by. cert_file and key_file are a client
    certificate, ca_file has the authorities that sign the servers' (PEM); tls is an ssl.SSLContext in place of these. Files
    are read again when they change.

    meta is shown to others beside host, pid and program. on_event is called with an Event when a lock is taken, lost or
    released, in a thread of its own.

    Calls that come close together are lines on connections of calls, on which a wait takes no place from others. Where a
    proxy does not pass these on, each call is a request. connections bounds how many requests wait for locks at once, how
    many others are under way, and how many connections to each server are kept open, of either kind. A lock that is free is
    had however many wait.

    One daemon thread serves all leases. It begins with the first lock. Leases that are left when the interpreter ends are
    released; if a daemon thread works on, they end with their TTL. In a forked child all leases are lost, and the client
    begins anew.
    """

    def __init__(
        self,
        *urls: str,
        token: Optional[str] = None,
        token_file: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
        cert_file: Optional[str] = None,
        key_file: Optional[str] = None,
        ca_file: Optional[str] = None,
        meta: Optional[Mapping[str, str]] = None,
        on_event: Optional[Callable[[Event], Any]] = None,
        connections: int = 64,
    ) -> None:
        tokens, certificates = Token(token, token_file), Certificates(tls, cert_file, key_file, ca_file)
        self._servers: Callable[[], Servers] = lambda: Servers(urls, tokens, certificates, connections)
        self._servers()  # tells of wrong arguments
        check_meta(meta)
        check_call("on_event", on_event)
        self._meta, self._on_event = meta, on_event
        self._closed = False
        self._begin()
        process.add(self)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may use the client, too
        self._worker: Optional[Worker] = None
        self._mine = threading.local()  # the holds of each thread, by name

    def _work(self) -> Worker:
        worker = self._worker
        if worker is None or not worker.lives():
            with self._mutex:
                if self._closed:
                    raise Unavailable("the client was closed")
                worker = self._worker
                if worker is not None and not worker.lives():  # nothing is renewed any more
                    worker.client.lose_all()
                    worker = None
                tell = Teller(self._on_event).tell if self._on_event is not None else _nobody
                worker = self._worker = worker or Worker(lambda: Client(self._servers(), tell, call_on_lost))
        return worker

    @hinted
    def lock(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = None,
        mode: Mode = "exclusive",
        limit: Optional[int] = None,
        meta: Optional[Mapping[str, str]] = None,
        min_hold: float = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> Lease:
        """Takes a lock and returns its Lease, which is a context manager.

        ttl      seconds for which the lock outlives a process that died
        wait     seconds for which to wait for it; None is for ever, and 0 is one try. The queue is always fair
        mode     exclusive, or write and read: one writer or many readers
        limit    makes it a semaphore with so many permits; all its users give the same limit
        meta     is shown to others, beside the client's
        min_hold seconds for which it is held at least: a release returns at once, and has its effect then
        renew    False: the lease ends after its ttl, unless extend is called
        reentrant if this thread has the lock already, it gets another lease of the same hold, which is released with
                 the last of them
        on_lost  is called with the lease, in a thread of its own, when it is lost

        Raises Held, Invalid, Denied or Unavailable. An interrupt leaves nothing behind.
        """
        return self._take(name, Terms(ttl, wait, mode, limit, meta, min_hold, renew, reentrant, on_lost))

    @hinted
    def try_lock(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        mode: Mode = "exclusive",
        limit: Optional[int] = None,
        meta: Optional[Mapping[str, str]] = None,
        min_hold: float = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> Optional[Lease]:
        """Makes one attempt at a lock, and returns None if others hold it. See lock."""
        try:
            return self._take(name, Terms(ttl, 0, mode, limit, meta, min_hold, renew, reentrant, on_lost))
        except Held:
            return None

    @hinted
    def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: float = 30.0,
        wait: Optional[float] = None,
        mode: Mode = "exclusive",
        limit: Optional[int] = None,
        meta: Optional[Mapping[str, str]] = None,
        min_hold: float = 0.0,
        renew: bool = True,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> Leases:
        """Takes several locks, all or none, and returns their Leases. See lock.

        They are taken in the order of their names, so that two programs can't wait for each other. wait is for all of them.
        Raises Lost if one is lost while another is waited for.
        """
        return self._take_all(sorted_names(names), Terms(ttl, wait, mode, limit, meta, min_hold, renew, False, on_lost))

    def _take_all(self, names: List[str], terms: Terms) -> Leases:
        worker, lost = self._work(), Flag()
        leases = [self._new(worker, name, terms, lost) for name in names]
        try:
            worker.run(worker.client.take_all, [lease._hold for lease in leases])
            for lease in leases:
                self._know(lease)
            return Leases(leases, lost)
        except BaseException:
            for lease in leases:
                lease._abandon()
            raise

    @hinted
    def guard(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = None,
        mode: Mode = "exclusive",
        limit: Optional[int] = None,
        meta: Optional[Mapping[str, str]] = None,
        min_hold: float = 0.0,
        renew: bool = True,
        reentrant: bool = False,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> Callable[[F], F]:
        """Decorates a function, which then runs only while the lock is held. See lock.

        Where the function needs the lease, use with self.lock(…) as lease.
        """
        check_name(name)
        terms = Terms(ttl, wait, mode, limit, meta, min_hold, renew, reentrant, on_lost)

        def decorate(f: F) -> F:
            early = TypeError(f"{f!r} returns before its work is done: use distlock.aio, or a with statement in it")
            if any(is_one(g) for g in (f, getattr(f, "__call__", None)) for is_one in _LATE_FUNCTIONS):
                raise early

            @functools.wraps(f)
            def guarded(*args: Any, **kw: Any) -> Any:
                with self._take(name, terms):
                    result = f(*args, **kw)
                    if any(is_one(result) for is_one in _LATE):
                        getattr(result, "close", getattr(result, "cancel", int))()
                        raise early
                    return result

            return cast(F, guarded)

        return decorate

    def elect(
        self,
        name: str,
        lead: Callable[[Lease], Any],
        *,
        ttl: float = 30.0,
        meta: Optional[Mapping[str, str]] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> None:
        """Campaigns for as long as the client is open, and calls lead with the lease whenever it is elected.

        lead returns soon after lease.lost is set, or raises Lost from lease.check. It campaigns again then, and, two seconds
        later, when lead returns before. An error of lead while it leads ends elect, and so do an interrupt, close, which
        raises Unavailable, and a refusal by servers that have never let this client in. One after a loss is logged.
        """
        check_call("lead", lead, wanted=True)
        terms = Terms(ttl, meta=meta, on_lost=on_lost)
        while True:
            try:
                lease = self._take(name, terms)
            except Error as e:
                if self._closed or not again(e, self._work().client):
                    raise
                time.sleep(ASIDE / 2)
                continue
            try:
                with lease as term:
                    lead(term)
                time.sleep(ASIDE)
            except Exception as e:
                if lease._hold.ended != "lost":
                    raise
                failed_after_loss(name, e)

    def locked(self, name: str) -> bool:
        """Reports whether somebody holds the lock. It needs the right see. Another may take or release it at once."""
        return self.holder(name) is not None

    def holder(self, name: str) -> Optional[Holder]:
        """Returns who holds the lock: the first one of several, None if it is free. It needs the right see."""
        worker = self._work()
        found: List[Holder] = worker.run(worker.client.holders, name)
        return found[0] if found else None

    def close(self) -> None:
        """Releases all leases, whose lost is set before, and ends the client."""
        with self._mutex:
            self._closed, worker = True, self._worker
        if worker is not None:
            worker.close()

    def __enter__(self) -> "Locks":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _new(self, worker: Worker, name: str, terms: Terms, lost: threading.Event) -> Lease:
        client = worker.client
        hold = Hold(name, terms, standing(self._meta), lost, lambda hold: worker.submit(client.drop, hold))
        return Lease(self, worker, hold)

    def _known(self) -> "weakref.WeakValueDictionary[str, Hold]":
        try:
            return cast("weakref.WeakValueDictionary[str, Hold]", self._mine.holds)
        except AttributeError:
            self._mine.holds = weakref.WeakValueDictionary()
            return cast("weakref.WeakValueDictionary[str, Hold]", self._mine.holds)

    def _know(self, lease: Lease) -> None:
        self._known()[lease.name] = lease._hold

    def _take(self, name: str, terms: Terms) -> Lease:
        worker = self._work()
        if terms.reentrant:
            outer = nested(self._known().get(name), terms)
            if outer is not None:
                return Lease(self, worker, outer)
        lease = self._new(worker, name, terms, Flag())
        try:
            if serves():
                worker.wait(worker.client.take, lease._hold)  # which says why not
            taken, first = worker.client.take_now(lease._hold)
            if not taken:
                worker.wait(worker.client.take, lease._hold, first)
            self._know(lease)
            return lease
        except BaseException:
            lease._abandon()
            raise

    def __reduce__(self) -> Any:
        raise TypeError("a client is of its process: make Locks in each")

    def _forked(self) -> None:
        worker = self._worker
        self._begin()
        if worker is not None:
            for hold in worker.client.holds:
                hold.lost.set()
            worker.abandon()

    def _exit(self, release: bool) -> None:
        worker = self._worker
        if worker is not None:
            self._closed = True
            worker.close(release)


def _nobody(_: Event) -> None:
    pass
