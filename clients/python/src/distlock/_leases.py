"""Leases for threads."""

import threading
from types import TracebackType
from typing import Any, Dict, Generic, Iterator, List, Optional, Type, TypeVar, cast

from ._errors import Error, Lost
from ._hold import BaseLease, Hold
from ._wire import Terms
from ._worker import Worker, serves

T = TypeVar("T", "Lease", "Leases")


class _Block(Generic[T]):
    """The with statements of what was taken: the first one has that, and each other one takes it anew, for its thread."""

    def __init__(self) -> None:
        self._first = [True]  # pop decides who is first, and takes no lock for that
        self._others: Dict[int, List[T]] = {}  # by thread

    def enter(self, mine: T) -> T:
        if mine._is_view():
            raise RuntimeError("this lease is that of a with statement already: want the object that lock has returned, or another lock")
        if self._first and not mine._was_released():
            try:
                self._first.pop()
                mine.check()
                return mine._view()
            except IndexError:
                pass
        taken, others = mine._again(), self._others.setdefault(threading.get_ident(), [])
        try:
            view = taken._view()
            others.append(taken)
            return view
        except BaseException:  # an interrupt: leave will not be called
            if others and others[-1] is taken:
                others.pop()
            raise

    def leave(self, mine: T) -> T:
        found = self._others.get(threading.get_ident()) or mine._was_released() and next(filter(None, self._others.values()), None)
        return found.pop() if found else mine


class Lease(BaseLease):
    """A lock that is held. It is renewed until it is released, lost or forgotten.

    It is a context manager, whose end releases the lock. Another with statement of it takes the lock again, as that of a
    threading.Lock does. A lease that nobody has any more is released, too, and told to on_event.
    """

    def __init__(self, locks: Any, worker: Worker, hold: Hold, owner: "Optional[Lease]" = None) -> None:
        super().__init__(hold, owner)
        self._locks, self._worker = locks, worker  # the client lives for as long as its leases
        self._block: "_Block[Lease]" = _Block()

    @property
    def lost(self) -> threading.Event:
        """Is set when the lease is lost, before another can have the lock."""
        return cast(threading.Event, self._hold.lost)

    def check(self) -> None:
        """Raises Lost if the lease has ended. It compares the clock itself, and so needs no thread to run."""
        self._check(self._expired)

    def _expired(self, hold: Hold) -> None:
        if hold.end("lost"):
            hold.lost.set()
            self._worker.submit(self._worker.client.lose, hold)

    def extend(self, ttl: float) -> None:
        """Renews the lease now, so that it lives for ttl seconds at least. Later renewals are as before.

        Raises Lost, or Unavailable if no server has confirmed it.
        """
        Terms(ttl=ttl, renew=False)
        self.check()
        self._worker.run(self._worker.client.extend, self._hold, ttl)

    def release(self) -> None:
        """Releases the lock.

        With min_hold it returns at once, and the lock is released when that is over. Raises Lost if the lock was lost
        before, and Unavailable if no server has confirmed the release: then the lock ends with its TTL. Another call does
        nothing, or raises Lost again.
        """
        if not self._is_over():
            client = self._worker.client
            if serves():  # the garbage collector has called it in a client's own thread, which can't wait for itself
                self._worker.later(client.release, self._hold, self._claim)
                return
            rest = client.release_now(self._hold, self._claim)
            if rest is not None:
                self._worker.run(rest)

    def _abandon(self) -> None:
        """Ends what a caller was interrupted in."""
        self._worker.submit(self._worker.client.abandon, self._hold, self._claim)

    def _view(self) -> "Lease":
        return Lease(self._locks, self._worker, self._hold, self)

    def _again(self) -> "Lease":
        return cast(Lease, self._locks._take(self.name, self._hold.terms))

    def __enter__(self) -> "Lease":
        return self._block.enter(self)

    def __exit__(
        self, kind: Optional[Type[BaseException]] = None, error: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        try:
            self._block.leave(self).release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass  # the work is done, and the TTL ends the lock


class Leases:
    """Several locks that are held together. It is a context manager, as a lease is, and iterates over its leases by name."""

    def __init__(self, leases: List[Lease], lost: threading.Event) -> None:
        self._leases, self._lost = leases, lost
        self._block: "_Block[Leases]" = _Block()

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
    def lost(self) -> threading.Event:
        """Is set when one of them is lost. It is the lost of each, too."""
        return self._lost

    def check(self) -> None:
        """Raises Lost if one of them has ended."""
        for lease in self._leases:
            lease.check()

    def release(self) -> None:
        """Releases all of them, the last one first, even if some fail. It raises the first error then."""
        errors: List[Error] = []
        for lease in reversed(self._leases):
            try:
                lease.release()
            except Error as e:
                errors.append(e)
        if errors:
            raise min(errors, key=lambda e: not isinstance(e, Lost))

    def _is_view(self) -> bool:
        return self._leases[0]._is_view()

    def _was_released(self) -> bool:
        return all(lease._was_released() for lease in self._leases)

    def _view(self) -> "Leases":
        return Leases([lease._view() for lease in self._leases], self._lost)

    def _again(self) -> "Leases":
        first = self._leases[0]
        return cast(Leases, first._locks._take_all([lease.name for lease in self._leases], first._hold.terms))

    def __enter__(self) -> "Leases":
        return self._block.enter(self)

    def __exit__(
        self, kind: Optional[Type[BaseException]] = None, error: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        try:
            self._block.leave(self).release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass
