"""Distributed locks of a distlock server for asyncio, with the standard library only.

    from distlock import aio

    async with aio.Locks("http://localhost:7077") as locks:
        async with locks.lock("report", ttl=30, wait=10) as lease:
            await write(report, fence=lease.fence)

It is the API of distlock, where calls that wait are awaited. A task that is cancelled in one of them leaves nothing behind.
The loop itself renews the leases, so code that blocks the loop blocks them, too: a lease is lost in time all the same.
"""

import asyncio
import functools
import inspect
import ssl
import weakref
from typing import (
    Any,
    Awaitable,
    Callable,
    Coroutine,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    TypeVar,
    cast,
)

from ._aio_leases import Lease, Leases, Taking
from ._client import ASIDE, Client, again, failed_after_loss, log, standing
from ._errors import Denied, Error, Event, Held, Holder, Invalid, Lost, Unavailable
from ._hold import BaseLease, Hold, nested, sorted_names
from ._secrets import Certificates, Token
from ._servers import Servers
from ._wire import Mode, Terms, check_call, check_meta, check_name, hinted
from ._worker import process, tell_one

__all__ = [
    "Denied", "Error", "Event", "Held", "Holder", "Invalid", "Lease", "Leases", "Locks", "Lost", "Unavailable",
]

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
OnLost = Callable[[Lease], Any]


class Locks:
    """The locks of a server, or of several servers before the same backend, in one event loop. See distlock.Locks.

    on_event is called in the loop, and so has to be quick. close, or async with, releases all leases; leases that are left
    when the loop ends end with their TTL.
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
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._client: Optional[Client] = None
        self._mine: "weakref.WeakKeyDictionary[Any, Dict[str, weakref.ref[Hold]]]" = weakref.WeakKeyDictionary()  # by task

    def _work(self) -> Client:
        if self._closed:
            raise Unavailable("the client was closed")
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("these Locks belong to another event loop: make some for each")
            call = self._on_event
            tell: Callable[[Event], None] = (lambda _: None) if call is None else functools.partial(tell_one, call)
            self._loop, self._client = loop, Client(self._servers(), tell, _call_on_lost)
        return self._client

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
        on_lost: Optional[OnLost] = None,
    ) -> Taking[Lease]:
        """Takes a lock: lease = await locks.lock(…), or async with locks.lock(…) as lease.

        ttl      seconds for which the lock outlives a process that died
        wait     seconds for which to wait for it; None is for ever, and 0 is one try. The queue is always fair
        mode     exclusive, or write and read: one writer or many readers
        limit    makes it a semaphore with so many permits; all its users give the same limit
        meta     is shown to others, beside the client's
        min_hold seconds for which it is held at least: a release returns at once, and has its effect then
        renew    False: the lease ends after its ttl, unless extend is called
        reentrant if this task has the lock already, it gets another lease of the same hold, which is released with
                 the last of them
        on_lost  is called with the lease when it is lost; a coroutine function becomes a task

        Raises Held, Invalid, Denied or Unavailable. A task that is cancelled leaves nothing behind.
        """
        terms = Terms(ttl, wait, mode, limit, meta, min_hold, renew, reentrant, on_lost)
        return Taking(lambda: self._take(name, terms))

    @hinted
    async def try_lock(
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
        on_lost: Optional[OnLost] = None,
    ) -> Optional[Lease]:
        """Makes one attempt at a lock, and returns None if others hold it. See lock."""
        try:
            return await self._take(name, Terms(ttl, 0, mode, limit, meta, min_hold, renew, reentrant, on_lost))
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
        on_lost: Optional[OnLost] = None,
    ) -> Taking[Leases]:
        """Takes several locks, all or none; await it for the Leases, or use it in async with. See lock.

        They are taken in the order of their names, so that two programs can't wait for each other. wait is for all of them.
        Raises Lost if one is lost while another is waited for.
        """
        terms = Terms(ttl, wait, mode, limit, meta, min_hold, renew, False, on_lost)
        found = sorted_names(names)
        return Taking(lambda: self._take_all(found, terms))

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
        on_lost: Optional[OnLost] = None,
    ) -> Callable[[F], F]:
        """Decorates a coroutine function, which then runs only while the lock is held. See lock."""
        check_name(name)
        terms = Terms(ttl, wait, mode, limit, meta, min_hold, renew, reentrant, on_lost)

        def decorate(f: F) -> F:
            if not inspect.iscoroutinefunction(f):
                raise TypeError(f"{f!r} is no coroutine function: use distlock.Locks, or an async with statement in it")

            @functools.wraps(f)
            async def guarded(*args: Any, **kw: Any) -> Any:
                async with Taking(lambda: self._take(name, terms)):
                    return await f(*args, **kw)

            return cast(F, guarded)

        return decorate

    async def elect(
        self,
        name: str,
        lead: Callable[[Lease], Awaitable[Any]],
        *,
        ttl: float = 30.0,
        meta: Optional[Mapping[str, str]] = None,
        on_lost: Optional[OnLost] = None,
    ) -> None:
        """Campaigns until it is cancelled, and runs lead with the lease whenever it is elected.

        lead is cancelled when the lease is lost. It campaigns again then, and, two seconds later, when lead returns before.
        An error of lead while it leads ends elect, and so do close, which raises Unavailable, and a refusal by servers that
        have never let this client in. One after a loss is logged.
        """
        check_call("lead", lead, wanted=True)
        terms = Terms(ttl, meta=meta, on_lost=on_lost)
        while True:
            try:
                lease = await self._take(name, terms)
            except Error as e:
                if self._closed or not again(e, self._work()):
                    raise
                await asyncio.sleep(ASIDE / 2)
                continue
            work = asyncio.ensure_future(lead(lease))
            loss = asyncio.ensure_future(lease.lost.wait())
            try:
                await asyncio.wait({work, loss}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                loss.cancel()
                work.cancel()
                await _ended(work)
                try:
                    await lease.release()
                except Error:
                    pass
            if lease._hold.ended != "lost":
                if not work.cancelled():
                    work.result()
                await asyncio.sleep(ASIDE)
            elif not work.cancelled():
                error = work.exception()
                if error is not None:
                    failed_after_loss(name, error)

    async def locked(self, name: str) -> bool:
        """Reports whether somebody holds the lock. It needs the right see. Another may take or release it at once."""
        return await self.holder(name) is not None

    async def holder(self, name: str) -> Optional[Holder]:
        """Returns who holds the lock: the first one of several, None if it is free. It needs the right see."""
        client = self._work()
        found: List[Holder] = await asyncio.shield(client.run(client.holders(name)))
        return found[0] if found else None

    async def close(self) -> None:
        """Releases all leases, whose lost is set before, and ends the client."""
        self._closed = True
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await asyncio.shield(self._client.run(self._client.close()))

    async def __aenter__(self) -> "Locks":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _new(self, client: Client, name: str, terms: Terms, lost: asyncio.Event) -> Lease:
        loop = asyncio.get_running_loop()

        def forgotten(hold: Hold) -> None:  # perhaps in another thread
            try:
                loop.call_soon_threadsafe(client.drop, hold)
            except RuntimeError:
                pass  # the loop has ended, and nothing is renewed

        return Lease(self, client, Hold(name, terms, standing(self._meta), lost, forgotten))

    def _known(self) -> "Dict[str, weakref.ref[Hold]]":
        return self._mine.setdefault(asyncio.current_task(), {})

    async def _take(self, name: str, terms: Terms) -> Lease:
        client, known = self._work(), self._known()
        if terms.reentrant:
            outer = nested(known[name]() if name in known else None, terms)
            if outer is not None:
                return Lease(self, client, outer)
        lease = self._new(client, name, terms, asyncio.Event())
        try:
            await client.take_here(lease._hold)
        except BaseException:
            client.abandon(lease._hold, lease._claim)
            raise
        known[name] = weakref.ref(lease._hold, lambda ref: known.get(name) is ref and known.pop(name))
        return lease

    async def _take_all(self, names: List[str], terms: Terms) -> Leases:
        client, lost = self._work(), asyncio.Event()
        leases = [self._new(client, name, terms, lost) for name in names]
        try:
            await asyncio.shield(client.run(client.take_all([lease._hold for lease in leases])))
        except BaseException:
            for lease in leases:
                client.abandon(lease._hold, lease._claim)
            raise
        return Leases(leases, lost)

    def __reduce__(self) -> Any:
        raise TypeError("a client is of its process: make Locks in each")

    def _forked(self) -> None:
        client = self._client
        self._begin()
        if client is not None:
            for hold in client.holds:
                hold.lost.set()
            client.close_inherited()
            _inherited.append(client)

    def _exit(self, _: bool) -> None:
        pass  # its loop has ended before


_inherited: List[Client] = []  # kept, since the end of a connection would disturb its process


def _call_on_lost(lease: BaseLease) -> None:
    call = lease._hold.terms.on_lost
    try:
        result = call(lease)  # type: ignore[misc]
    except Exception:
        log.exception("on_lost failed")
        return
    if inspect.isawaitable(result):
        lease._on_lost = asyncio.ensure_future(result)  # type: ignore[attr-defined]


async def _ended(work: "asyncio.Future[Any]") -> None:
    """Waits for a task that was cancelled, also if the caller is cancelled meanwhile."""
    cancelled: Optional[asyncio.CancelledError] = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as e:
            cancelled = e
    if cancelled is not None:
        raise cancelled
