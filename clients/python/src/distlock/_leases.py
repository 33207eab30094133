"""Leases for threads."""

import threading
from types import TracebackType
from typing import Any, Iterator, List, Optional, Type, cast

from ._errors import Error, Lost
from ._hold import BaseLease, Hold
from ._wire import Terms
from ._worker import Worker


class Lease(BaseLease):
    """A lock that is held. It is renewed until it is released, lost or forgotten.

    It is a context manager, whose end releases the lock. A lease that nobody has any more is released, too, and told to
    on_event.
    """

    def __init__(self, locks: Any, worker: Worker, hold: Hold, owner: "Optional[Lease]" = None) -> None:
        super().__init__(hold, owner)
        self._locks, self._worker = locks, worker  # the client lives for as long as its leases

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
        Terms(ttl=ttl)
        self.check()
        self._worker.run(self._worker.client.extend, self._hold, ttl)

    def release(self) -> None:
        """Releases the lock.

        With min_hold it returns at once, and the lock is released when that is over. Raises Lost if the lock was lost
        before, and Unavailable if no server has confirmed the release: then the lock ends with its TTL. Another call does
        nothing, or raises Lost again.
        """
        if not self._is_over():
            self._worker.run(self._worker.client.release, self._hold, self._claim)

    def _abandon(self) -> None:
        """Ends what a caller was interrupted in."""
        self._worker.submit(self._worker.client.abandon, self._hold, self._claim)

    def __enter__(self) -> "Lease":
        return Lease(self._locks, self._worker, self._hold, self)

    def __exit__(
        self, kind: Optional[Type[BaseException]] = None, error: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        try:
            self.release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass  # the work is done, and the TTL ends the lock


class Leases:
    """Several locks that are held together. It is a context manager, and iterates over its leases by name."""

    def __init__(self, leases: List[Lease], lost: threading.Event) -> None:
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

    def __enter__(self) -> "Leases":
        return Leases([lease.__enter__() for lease in self._leases], self._lost)

    def __exit__(
        self, kind: Optional[Type[BaseException]] = None, error: Optional[BaseException] = None,
        trace: Optional[TracebackType] = None,
    ) -> None:
        try:
            self.release()
        except Lost:
            if kind is None:
                raise
        except Error:
            pass
