"""The renewals of a client: one timer for all holds, and one request for many."""

import asyncio
import heapq
import itertools
import time
from typing import Any, Callable, Coroutine, Dict, List, Optional, Set, Tuple

from ._hold import NEVER, Hold
from ._servers import Servers
from ._wire import RENEWAL, RENEWAL_BYTES, margin, patience


class Renewals:
    """Renews the holds of a client, and tells when one is over: lost, forgotten, or kept for long enough."""

    def __init__(
        self, servers: Servers, run: Callable[[Coroutine[Any, Any, Any]], Any], over: Callable[[Hold, str], None]
    ) -> None:
        self._servers, self._run, self._over = servers, run, over
        self.holds: Set[Hold] = set()  # that live, or are kept for min_hold
        self._fresh: Dict[Hold, None] = {}  # those that are not in the heap yet, which other threads add
        self._heap: List[Tuple[float, int, Hold]] = []  # when to look at a hold next
        self._count = itertools.count(1)
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = NEVER

    def add(self, hold: Hold) -> None:
        self.holds.add(hold)
        self.arm(hold)

    def add_here(self, hold: Hold, submit: Callable[..., Any]) -> None:
        """Adds a hold in another thread than the loop's, which it wakes only if that will not look in time."""
        self.holds.add(hold)
        self._fresh[hold] = None
        if min(hold.due, hold.deadline) < self._timer_at:
            submit(self._look)

    def discard(self, hold: Hold) -> None:
        self.holds.discard(hold)
        self._fresh.pop(hold, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = -NEVER

    def arm(self, hold: Hold) -> None:
        """Notes when to look at a hold next."""
        when = hold.deadline if hold.renewing else min(hold.due, hold.deadline)
        if hold.kept_until:
            when = min(when, hold.kept_until)
        hold.entry = next(self._count)
        heapq.heappush(self._heap, (when, hold.entry, hold))
        if when < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_at = self._heap[0][0]
        # The loop's clock is the monotonic one, too, but does not say so.
        self._timer = loop.call_later(max(0.0, self._timer_at - time.monotonic()), self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, NEVER
        for hold in list(self._fresh):
            self._fresh.pop(hold, None)
            self.arm(hold)
        now = time.monotonic()
        due: Dict[float, List[Hold]] = {}  # by how long a request may take
        # Leases that are due soon are renewed with those that are due, and from then on are due together.
        while self._heap and self._heap[0][0] <= now + self._heap[0][2].terms.ttl / 30:
            when, entry, hold = heapq.heappop(self._heap)
            if entry != hold.entry or hold not in self.holds:
                continue
            if when > now and not (when == hold.due and not hold.renewing):
                heapq.heappush(self._heap, (when, entry, hold))
                break
            if not self._has_ended(hold, now):
                if hold.due <= now + hold.terms.ttl / 30 and not hold.renewing:
                    hold.renewing = True
                    due.setdefault(patience(hold.terms.ttl), []).append(hold)
                self.arm(hold)
        for timeout, found in due.items():
            for chunk in _chunks(found):
                self._run(self._renew(chunk, timeout))
        if self._heap:
            self._set_timer()

    def _has_ended(self, hold: Hold, now: float) -> bool:
        """Ends a hold that is not to be renewed any more."""
        if hold.kept_until:
            if now < min(hold.kept_until, hold.deadline):
                return False
            self._over(hold, "kept")
        elif now >= hold.deadline:
            self._over(hold, "lost")
        elif hold.lease() is None:
            self._over(hold, "forgotten")
        else:
            return False
        return True

    async def _renew(self, chunk: List[Tuple[Hold, bytes, float]], timeout: float) -> None:
        start, found = time.monotonic(), {}
        try:
            found = await self._servers.renew([text for _, text, _ in chunk], timeout)
        finally:
            for i, (hold, _, ttl) in enumerate(chunk):
                self._renewed(hold, found.get(i, "unknown"), start, ttl)

    def _renewed(self, hold: Hold, kind: str, start: float, ttl: float) -> None:
        hold.renewing = False
        if kind == "ok":
            hold.prolong(start + ttl - margin(hold.terms.ttl))
            hold.due = start + hold.terms.ttl / 3
            if hold.kept_until and hold.deadline >= hold.kept_until:
                hold.due = NEVER
        elif kind == "lost":
            hold.gone = True
            self._over(hold, "lost")
        else:
            hold.due = time.monotonic() + hold.terms.ttl / 30
        if hold in self.holds:
            self.arm(hold)


def _chunks(found: List[Hold]) -> List[List[Tuple[Hold, bytes, float]]]:
    """Divides holds into those of one request each, with the TTL that each gets."""
    chunks: List[List[Tuple[Hold, bytes, float]]] = []
    size = RENEWAL_BYTES
    for hold in found:
        ttl = hold.terms.ttl
        if hold.kept_until:
            ttl = max(ttl, hold.min_hold_left() + margin(ttl))
        text = hold.renewal(ttl)
        if size + len(text) + 100 > RENEWAL_BYTES or len(chunks[-1]) == RENEWAL:
            chunks.append([])
            size = 0
        chunks[-1].append((hold, text, ttl))
        size += len(text) + 1
    return chunks
