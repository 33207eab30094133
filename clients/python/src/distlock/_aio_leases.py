"""Leases for asyncio."""

import asyncio
import weakref
from types import TracebackType
from typing import Any, Callable, Coroutine, Generator, Iterator, List, Optional, Type, TypeVar, cast

from ._client import Client
from ._errors import Error, Lost
from ._hold import BaseLease, Hold
from ._wire import Terms

T = TypeVar("T", "Lease", "Leases")


class Lease(BaseLease):
    """A lock that is held. It is renewed until it is released, lost or forgotten. See distlock.Lease."""

    def __init__(self, locks: Any, client: Client, hold: Hold, owner: "Optional[Lease]" = None) -> None:
        super().__init__(hold, owner)
        self._locks, self._client = locks, client  # the client lives for as long as its leases

    @property
    def lost(self) -> asyncio.Event:
        """Is set when the lease is lost, before another can have the lock."""
        return cast(asyncio.Event, self._hold.lost)

    def check(self) -> None:
        """Raises Lost if the lease has ended. It compares the clock itself."""
        self._check(self._client.lose)

    async def extend(self, ttl: float) -> None:
        """Renews the lease now, so that it lives for ttl seconds at least. Later renewals are as before.

        Raises Lost, or Unavailable if no server has confirmed it.
        """
        Terms(ttl=ttl, renew=False)
        self.check()
        await asyncio.shield(self._client.run(self._client.extend(self._hold, ttl)))

    async def release(self) -> None:
        """Releases the lock, also if the task is cancelled meanwhile.

        With min_hold it returns at once, and the lock is released when that is over. Raises Lost if the lock was lost
        before, and Unavailable if no server has confirmed the release: then the lock ends with its TTL. Another call does
        nothing, or raises Lost again.
        """
        if not self._is_over():
            await self._client.release_here(self._hold, self._claim)

    def _view(self) -> "Lease":
        return Lease(self._locks, self._client, self._hold, self)


class Leases:
    """Several locks that are held together. It iterates over its leases by name."""

    def __init__(self, leases: List[Lease], lost: asyncio.Event) -> None:
        self._leases, self._lost = leases, lost

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __getitem__(self, name: str) -> Lease:
        for lease in self._leases:
            if lease.name == name:
                return lease
        raise KeyError(name)

    @property
    def lost(self) -> asyncio.Event:
        """Is set when one of them is lost. It is the lost of each, too."""
        return self._lost

    def check(self) -> None:
        """Raises Lost if one of them has ended."""
        for lease in self._leases:
            lease.check()

    async def release(self) -> None:
        """Releases all of them, also if the task is cancelled meanwhile. It raises the first error."""
        ends = [asyncio.ensure_future(lease.release()) for lease in reversed(self._leases)]
        errors = [e for e in await asyncio.gather(*ends, return_exceptions=True) if isinstance(e, Exception)]
        if errors:
            raise min(errors, key=lambda e: not isinstance(e, Lost))

    def _view(self) -> "Leases":
        return Leases([lease._view() for lease in self._leases], self._lost)


class Taking(Coroutine[Any, Any, T]):
    """Is what lock returns: await it for the lease, or use it in async with, which releases the lease at its end.

    It may be used again, also by several tasks at once: each takes the lock for itself. As a coroutine, of which create_task
    makes a task, it runs once.
    """

    def __init__(self, take: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._take: Callable[[], Coroutine[Any, Any, T]] = take
        self._work: Optional[Coroutine[Any, Any, T]] = None
        self._taken: "weakref.WeakKeyDictionary[Any, List[T]]" = weakref.WeakKeyDictionary()  # by task

    def __await__(self) -> Generator[Any, None, T]:
        return self._take().__await__()

    def _begun(self) -> Coroutine[Any, Any, T]:
        if self._work is None:
            self._work = self._take()
        return self._work

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        if self._work is not None:
            self._work.close()

    async def __aenter__(self) -> T:
        taken = await self._take()
        self._taken.setdefault(asyncio.current_task(), []).append(taken)
        return taken._view()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]] = None, error: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        mine = self._taken.get(asyncio.current_task())
        if not mine:  # a generator's end, which is in a task of its own
            all_taken = [(task.done(), taken) for task, taken in list(self._taken.items()) if taken]
            found = [taken for done, taken in all_taken if done] or [taken for _, taken in all_taken]
            mine = found[0] if len(found) == 1 else None  # it is not known which: those end with their tasks
        try:
            if mine:
                await mine.pop().release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass  # the work is done, and the TTL ends the lock
