"""A hold of a lock, and the lease by which a caller has it."""

import math
import time
import uuid
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Protocol

from ._errors import Invalid, Lost
from ._wire import Grant, Terms, check_name, encode, margin, milliseconds

NEVER = math.inf


class Flag(Protocol):
    """A threading.Event or an asyncio.Event."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


def new_owner() -> str:
    """Makes the owner of one attempt to hold."""
    return str(uuid.uuid4())


class Hold:
    """What the client knows of a hold, from before the first request until its end.

    Callers have it by their leases, which it refers to weakly: a hold without a lease is released and not renewed. All but
    the client's loop only read it, call check, and take leases away.
    """

    def __init__(self, name: str, terms: Terms, meta: Mapping[str, str], lost: Flag, forgotten: Callable[["Hold"], Any]) -> None:
        check_name(name)
        self.name, self.terms, self.lost = name, terms, lost
        self.owner = new_owner()
        self.fence = 0
        self.since = 0.0
        self.deadline = -NEVER  # of time.monotonic; only a renewal in time moves it
        self.due = NEVER  # when it is renewed next
        self.renewing = False
        self.kept_until = 0.0  # the lease was released, and min_hold is not over
        self.entry = 0  # of the client's heap: the one that counts
        self.gone = False  # the server said that it is lost
        self.when_lost: List[Callable[[], None]] = []
        self.task: Any = None  # that takes it
        self.asked = False  # for by its caller, over a connection of calls
        self._meta = dict(meta, **(terms.meta or {}))
        self._forgotten = forgotten
        self._leases: "Dict[weakref.ref[BaseLease], None]" = {}
        self._end: Dict[str, List[str]] = {}

    # A dict decides what is first: that takes no lock, which a signal's handler or a forked child could wait for in vain.

    @property
    def ended(self) -> str:
        """Why it has ended: released, lost, forked, closed or failed. Empty if it has not."""
        return self._end["why"][0] if self._end else ""

    def end(self, why: str) -> bool:
        """Ends it for its leases, and reports whether that was the first end."""
        mine = [why]
        return self._end.setdefault("why", mine) is mine

    def attach(self, lease: "BaseLease") -> "weakref.ref[BaseLease]":
        ref = weakref.ref(lease, self._forget)
        self._leases[ref] = None
        return ref

    def detach(self, ref: "weakref.ref[BaseLease]") -> bool:
        """Takes a lease away, and reports whether it was there."""
        return self._leases.pop(ref, self) is None

    def _forget(self, ref: "weakref.ref[BaseLease]") -> None:
        self.detach(ref)
        if not self._leases and not self.ended:
            self._forgotten(self)

    def lease(self) -> "Optional[BaseLease]":
        """Returns a lease that somebody has."""
        for ref in list(self._leases):
            lease = ref()
            if lease is not None:
                return lease
        return None

    def begin(self, grant: Grant, now: float) -> None:
        self.fence, self.deadline, self.since = grant.fence, grant.end, now
        if self.terms.renew:
            self.due = grant.end + margin(self.terms.ttl) - self.terms.ttl * 2 / 3

    def prolong(self, end: float) -> None:
        if time.monotonic() < self.deadline:  # else it has ended, whatever the answer
            self.deadline = max(self.deadline, end)

    def min_hold_left(self) -> float:
        return self.since + self.terms.min_hold - time.monotonic() if self.terms.min_hold else 0.0

    def key(self) -> Dict[str, Any]:
        return {"name": self.name, "owner": self.owner, "mode": self.terms.kind}

    def request(self, wait: float) -> Dict[str, Any]:
        """Returns the body of an acquire."""
        ttl = max(self.terms.ttl, self.terms.min_hold)  # it is held for that if the process dies, too
        body = dict(self.key(), ttl_ms=milliseconds(ttl), meta=self._meta, wait_ms=int(wait * 1000))
        if self.terms.limit is not None:
            body["limit"] = self.terms.limit
        if not self.terms.renew:
            body["fixed"] = True
        if self.terms.min_hold:
            body["min_hold_ms"] = milliseconds(self.terms.min_hold)  # some stores can't keep a hold
        return body

    def renewal(self, ttl: float) -> bytes:
        """Returns the hold as a renewal's body has it."""
        return encode(dict(self.key(), ttl_ms=milliseconds(ttl), fence=str(self.fence)))

    def remaining(self) -> float:
        return 0.0 if self.ended else max(0.0, self.deadline - time.monotonic())


_WHY = {
    "released": "was released",
    "forked": "is the lock of the process that has forked this one",
    "closed": "was given up when its client was closed",
    "failed": "was not taken",
}


class BaseLease:
    """What leases of threads and of asyncio have in common.

    A lease owns its hold: without it the hold ends. What a with statement gives to its block is a view, which does not, so
    that the variable that outlives the block keeps nothing.
    """

    def __init__(self, hold: Hold, owner: "Optional[BaseLease]" = None) -> None:
        self._hold = hold
        self._owner: "Optional[weakref.ref[BaseLease]]" = None if owner is None else weakref.ref(owner)
        self._claim: Claim = Claim(hold.attach(self)) if owner is None else owner._claim

    def __repr__(self) -> str:
        return f"<distlock.Lease {self.name!r} fence={self.fence}>"

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._hold.name

    @property
    def fence(self) -> int:
        """A number that grows with each holder, for the storage to compare."""
        return self._hold.fence

    def remaining(self) -> float:
        """Returns for how many seconds the lease is trusted if no renewal succeeds; 0 once it has ended."""
        return 0.0 if self._claim.released else self._hold.remaining()

    def _is_view(self) -> bool:
        return self._owner is not None

    def _was_released(self) -> bool:
        return self._claim.released and self._hold.ended != "lost"

    def __reduce__(self) -> Any:
        raise TypeError("a lease is of its process: give others its name and fence, and let each process take locks of its own")

    def _is_over(self) -> bool:
        """Reports whether there is nothing to release, and raises Lost if that is since the lease was lost."""
        why = self._hold.ended
        if why == "lost" and self._hold.gone or why in ("forked", "closed"):
            raise Lost(self._why())
        if self._claim.released or self._owner is not None and self._owner() is None:
            if why == "lost":
                raise Lost(self._why())
            return True
        return False

    def _check(self, expired: Callable[[Hold], None]) -> None:
        hold = self._hold
        if not self._claim.released and not hold.ended and time.monotonic() >= hold.deadline:
            expired(hold)
        if hold.ended or self._claim.released:
            raise Lost(self._why())

    def _why(self) -> str:
        return f"{self.name!r} {_WHY.get(self._hold.ended or 'released', 'is lost')}"


def nested(outer: Optional[Hold], terms: Terms) -> Optional[Hold]:
    """Returns the hold that a re-entrant caller has already, or None. Raises Invalid if that can't do."""
    if outer is None or outer.remaining() == 0:
        return None
    have, want = outer.terms, terms
    if (have.kind, have.limit) == (want.kind, want.limit) or have.mode == "write" and want.mode == "read":
        return outer
    raise Invalid(f"{outer.name!r} is held as {have.kind} by the caller itself, who would wait for itself as {want.kind}")


def sorted_names(names: Iterable[str]) -> List[str]:
    """Returns the names of several locks in the order in which all take them."""
    if isinstance(names, str):
        raise ValueError("names is a text: want a list of names")
    found = list(names)
    for name in found:
        check_name(name)
    found.sort()
    if not found:
        raise ValueError("there are no names: want at least one")
    if len(set(found)) < len(found):
        raise ValueError("a name is there twice")
    return found


class Claim:
    """The part of a lease that its views share."""

    def __init__(self, ref: "weakref.ref[BaseLease]") -> None:
        self.ref = ref
        self.released = False
