"""The client itself: it takes, renews and releases, in one event loop, for threads and for asyncio."""

import asyncio
import functools
import logging
import os
import random
import socket
import sys
import time
from typing import Any, Callable, Coroutine, Dict, List, Mapping, Optional, Set, Tuple, Type, cast

from ._errors import Denied, Error, Event, Holder, Invalid, Lost, Unavailable, held, holders
from ._hold import NEVER, BaseLease, Claim, Hold, new_owner
from ._renewals import Renewals
from ._servers import NO_FACT, Servers
from ._wire import POLL, Answer, check_name, encode, granted, margin, patience, segment

log = logging.getLogger("distlock")

_FINAL: Dict[str, Type[Error]] = {
    "invalid": Invalid, "unsupported": Invalid, "denied": Denied, "other": Unavailable,
}

_CLOSED = "the client was closed"

Asked = Tuple[float, float, Answer]  # when a server was asked for a lock, for how long it was to wait, and its answer

TELL, TELL_AGAIN = 5.0, 60.0  # seconds after which a wait without an answer is logged, by one wait of a client

ASIDE = 2.0  # seconds for which a leader that gave up lets the others have their turn


def failed_after_loss(name: str, error: BaseException) -> None:
    """Tells of an error of lead that does not end the election. It may be a mistake, which nobody would see otherwise."""
    if not isinstance(error, Lost):
        log.warning("lead of %r failed after its lease was lost", name, exc_info=error)


def standing(meta: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """Returns what others see of the holder."""
    program = os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "") or "python"
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "program": program, **(meta or {})}


class Client:
    """Takes, renews and releases holds. All its methods run in its loop."""

    submit: Callable[..., Any]  # lets the loop call something, from other threads

    def __init__(self, servers: Servers, tell: Callable[[Event], None], lost: Callable[[BaseLease], None]) -> None:
        self._servers, self._tell, self._lost = servers, tell, lost
        self._renewals = Renewals(servers, self.run, self._over)
        self._tasks: "Set[asyncio.Task[Any]]" = set()
        self._attempts: "Set[asyncio.Task[Any]]" = set()  # those that take
        self._asking: Set[Hold] = set()  # attempts of callers in their own tasks
        self.closed = False
        self._tell_at = 0.0

    @property
    def holds(self) -> List[Hold]:
        """The holds that live."""
        return list(self._renewals.holds)

    @property
    def let_in(self) -> bool:
        """Whether a server has let this client in before."""
        return self._servers.let_in

    def run(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Runs work as a task of the client, which does not end with the one who waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # so that asyncio does not complain if nobody waits any more

    # Taking

    async def take_here(self, hold: Hold) -> None:
        """Takes a hold in the caller's task, over a stream, or else by take."""
        stream = None if self.closed else self._servers.stream(True)
        if stream is None:
            return await asyncio.shield(self.take(hold))
        start, first = time.monotonic(), None
        poll = POLL if hold.terms.wait is None else min(POLL, hold.terms.wait)
        hold.asked = True
        self._asking.add(hold)
        try:
            answer = await self._servers.over(stream, "acquire", encode(hold.request(poll)), poll + patience(hold.terms.ttl))
        except asyncio.CancelledError:
            ending = self.drop(hold, "failed")
            if ending is not None:
                await asyncio.wait({ending}, timeout=1.0)  # the loop may be about to end
            raise
        finally:
            self._asking.discard(hold)
        if answer is not None:
            if self.began(hold, start, answer):
                return
            first = start, poll, answer
        await asyncio.shield(self.take(hold, first))

    def take_now(self, hold: Hold) -> "Tuple[bool, Optional[Asked]]":
        """Takes a free lock in the caller's thread, if there is a lane. Else it returns what take has to know."""
        lane = None if self.closed else self._servers.lane(self.submit)
        if lane is None:
            return False, None
        hold.asked, start = True, time.monotonic()
        try:
            answer = lane.call("acquire", encode(hold.request(0.0)))
        finally:
            self._servers.give_lane(lane)
        if answer is None:
            return False, None
        return self.began(hold, start, answer, self.submit), (start, 0.0, answer)

    def began(self, hold: Hold, start: float, answer: Answer, submit: Optional[Callable[..., Any]] = None) -> bool:
        """Begins a hold of an answer to its first request, if that is a grant."""
        now = time.monotonic()
        grant = granted(answer, hold.terms.ttl, start, now) if answer.kind == "ok" and not (hold.ended or self.closed) else None
        if grant is None:
            return False
        hold.begin(grant, now)
        if submit is None:
            self._renewals.add(hold)
        else:
            self._renewals.add_here(hold, submit)
        if answer.body["waited_ms"] > 0:
            self._event("waited", hold, start)
        self._event("taken", hold, start)
        return True

    def take(self, hold: Hold, first: "Optional[Asked]" = None) -> "asyncio.Task[Any]":
        """Begins to take a hold, for which its caller has asked already, perhaps. drop ends that, however far it has come."""
        hold.task = task = self.run(self._take(hold, first))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)
        return task

    async def _take(self, hold: Hold, first: "Optional[Asked]") -> None:
        start = time.monotonic() if first is None else first[0]
        try:
            if self.closed or hold.ended:
                if hold.asked:
                    self._finish_later(hold)
                raise Unavailable(_CLOSED)
            await self._acquire(hold, start, first)
            self._event("taken", hold, start)
        except BaseException as e:
            hold.end("failed")
            self._event("failed", hold, start)
            if isinstance(e, asyncio.CancelledError) and self.closed:
                raise Unavailable(_CLOSED) from None
            raise

    async def _acquire(self, hold: Hold, start: float, first: "Optional[Asked]") -> None:
        wait, ttl = hold.terms.wait, hold.terms.ttl
        end = NEVER if wait is None else start + wait
        tries = failures = 0
        since = NEVER  # of the first of the answers that were none
        perhaps = False  # a server may have a hold of this owner, or a place in the queue
        unsure = False  # a request of this owner had no answer
        waited = False
        try:
            while True:
                before, perhaps = perhaps, True  # also if the request is cut short
                sent, poll, answer = first or await self._ask(hold, end, tries == 0)
                first = None
                now, kind, detail = time.monotonic(), answer.kind, answer.detail
                if kind == "ok":
                    grant = granted(answer, ttl, sent, now)
                    if grant is not None:
                        hold.begin(grant, now)
                        waited = waited or answer.body["waited_ms"] > 0
                        self._renewals.add(hold)
                        return
                    kind, detail = "unknown", "the answer came too late"
                if poll == 0 and kind != "unknown" and not answer.unsure:
                    perhaps = before
                unsure = unsure or kind == "unknown" or answer.unsure
                waited = waited or kind == "held" and poll > 0
                if answer.body.get("spent") is True:  # the owner was released, perhaps late: it must make no other attempt
                    if unsure:
                        await self._finish(hold.key(), now + patience(ttl), patience(ttl))
                    hold.owner = new_owner()
                    perhaps = unsure = False
                over = now >= end
                if kind in _FINAL and (over or kind != "denied" or not self.let_in):  # a right may be given back
                    raise _FINAL[kind](detail)
                tries += 1
                failures = 0 if kind == "held" else failures + 1
                since = NEVER if kind == "held" else min(since, sent)
                if now >= max(since + TELL, self._tell_at):
                    self._tell_at = now + TELL_AGAIN
                    log.warning("waiting for the lock %r, and still without an answer: %s", hold.name, detail)
                if over and kind == "held":
                    raise held(hold.name, holders(answer.body.get("holders")))
                if over and tries >= 2 * len(self._servers):
                    raise Unavailable(detail)
                await _pause(failures, end)
        except BaseException:
            if perhaps:
                await self._finish(hold.key(), time.monotonic() + ttl, patience(ttl))
            raise
        finally:
            if waited:
                self._event("waited", hold, start)

    async def _ask(self, hold: Hold, end: float, first: bool) -> Tuple[float, float, Answer]:
        """Asks for a lock once. Returns when, for how long the server was to wait, and its answer."""
        servers, waits = self._servers, False
        slots, stream, left = servers.waits, servers.stream(True), end - time.monotonic()
        if stream is None and left > 0:
            # The first request needs no slot: a free lock is had, however many wait for others. On a stream none does.
            waits = slots.take_now() or not first and await slots.take(left)
            if not waits and servers.opening is not None:
                await asyncio.wait({servers.opening}, timeout=min(left, 1.0))
            stream = None if waits else servers.stream(True)
        try:
            sent = time.monotonic()
            poll = max(0.0, min(POLL, end - sent)) if waits or stream is not None else 0.0
            body, timeout = hold.request(poll), poll + patience(hold.terms.ttl)
            answer = None if stream is None else await servers.over(stream, "acquire", encode(body), timeout)
            return sent, poll, answer or await servers.acquire(body, timeout, waits)
        finally:
            if waits:
                slots.give()

    async def take_all(self, all_holds: List[Hold]) -> None:
        """Takes holds in their order, all or none. It gives up if one is lost while it waits for the next."""
        current: "Optional[asyncio.Task[Any]]" = None

        def give_up() -> None:
            if current is not None:
                current.cancel()

        try:
            for hold in all_holds:
                hold.when_lost.append(give_up)
                current = self.take(hold)
                await asyncio.shield(current)
                for earlier in all_holds:
                    if earlier.ended:
                        raise Lost(f"{earlier.name!r} was lost while its owner waited for {hold.name!r}")
                    if earlier is hold:
                        break
        except BaseException:
            lost = next((h for h in all_holds if h.ended == "lost"), None)
            ends = [self.drop(hold, "released") for hold in reversed(all_holds)]
            await asyncio.gather(*filter(None, ends), return_exceptions=True)
            if lost is not None:
                raise Lost(f"{lost.name!r} was lost before all locks were taken") from None
            raise

    # Ending

    def abandon(self, hold: Hold, claim: Claim) -> None:
        """Ends what a caller was interrupted in."""
        claim.released = True
        hold.detach(claim.ref)
        if hold.lease() is None:
            self.drop(hold, "released")

    def drop(self, hold: Hold, why: str = "forgotten") -> "Optional[asyncio.Task[Any]]":
        """Ends a hold that nobody has: an attempt, or one that was granted. Returns the task that does it, if there is one."""
        if hold.task is None and not hold.asked:
            hold.end("failed")  # before it has begun
        elif hold.task is not None and not hold.task.done():
            if hold.end("failed"):  # once, since another cancellation would disturb it
                hold.task.cancel()  # it releases what it may have
                if hold.asked:  # before that had begun
                    return self._finish_later(hold)
            return cast("asyncio.Task[Any]", hold.task)
        elif (hold in self._renewals.holds or hold.task is None) and hold.end(why):
            self._renewals.discard(hold)
            if why == "forgotten":
                log.warning("a lease of %r was forgotten without a release; it is released now", hold.name)
            self._event(why if hold.since else "failed", hold, hold.since or time.monotonic())
            return self._finish_later(hold)
        return None

    async def release(self, hold: Hold, claim: Claim) -> None:
        """Ends a lease. With the last one its hold is released."""
        if claim.released:
            return
        claim.released = True
        hold.detach(claim.ref)
        if hold.lease() is not None:
            if hold.ended == "lost":
                raise Lost(f"{hold.name!r} was lost before its release")
            return
        if hold.ended in ("forked", "failed", "closed"):
            raise Lost(f"{hold.name!r} is lost")
        now = time.monotonic()
        if now >= hold.deadline:
            self.lose(hold)
        if hold.end("released"):
            left = hold.min_hold_left()
            if left > 0:
                self._keep(hold, now + left)
                return
            self._renewals.discard(hold)
            self._event("released", hold, hold.since)
        await self._confirm(hold, None)

    def release_begins(self, hold: Hold, claim: Claim) -> bool:
        """Begins the release of a hold by its caller, in one call, unless it is an unusual one."""
        if self.closed or hold.terms.min_hold or hold.ended or len(hold._leases) > 1 or time.monotonic() >= hold.deadline:
            return False
        claim.released = True
        if not hold.end("released"):
            return True
        hold.detach(claim.ref)
        self._renewals.discard(hold)
        self._event("released", hold, hold.since)
        return True

    async def release_here(self, hold: Hold, claim: Claim) -> None:
        """Releases in the caller's task, over a stream, or else by release."""
        stream = None if hold.terms.min_hold else self._servers.stream(False)
        if stream is None or not self.release_begins(hold, claim):
            return await asyncio.shield(self.run(self.release(hold, claim)))
        try:
            answer = await self._servers.over(stream, "release", encode(hold.key()), patience(hold.terms.ttl))
        except asyncio.CancelledError:
            await asyncio.wait({self._finish_later(hold)}, timeout=1.0)  # the loop may be about to end
            raise
        if not _is_over(hold, answer):
            await asyncio.shield(self.run(self._confirm(hold, answer)))

    def release_now(self, hold: Hold, claim: Claim) -> Optional[Callable[[], Coroutine[Any, Any, None]]]:
        """Releases in the caller's thread, if there is a lane. Returns what is left to be done."""
        lane = None if hold.terms.min_hold else self._servers.lane(self.submit)
        if lane is None:
            return functools.partial(self.release, hold, claim)
        try:
            if not self.release_begins(hold, claim):
                return functools.partial(self.release, hold, claim)
            answer = lane.call("release", encode(hold.key()))
        except BaseException:
            self.submit(self._interrupted, hold)
            raise
        finally:
            self._servers.give_lane(lane)
        return None if _is_over(hold, answer) else functools.partial(self._confirm, hold, answer)

    def _interrupted(self, hold: Hold) -> None:
        """Ends what a caller was interrupted in, after any of its steps."""
        hold.end("released")
        self._renewals.discard(hold)
        self._finish_later(hold)

    async def _confirm(self, hold: Hold, answer: Optional[Answer]) -> None:
        """Releases a hold until that is certain, after an answer to its caller, perhaps."""
        now, was_lost = time.monotonic(), hold.ended == "lost"
        kind, detail = "lost", ""
        if not hold.gone and (answer is None or answer.kind != "lost"):  # one that is lost by the clock may live on at the backend
            until = now if was_lost else max(hold.deadline, now)
            unsure = answer is not None and answer.kind == "unknown"
            kind, detail = await self._finish(hold.key(), until, patience(hold.terms.ttl), unsure)
        hold.gone = True
        if was_lost or kind == "lost":
            hold.lost.set()
            raise Lost(f"{hold.name!r} was lost before its release")
        if kind != "ok":
            raise Unavailable(f"the release of {hold.name!r} was not confirmed: {detail}")

    def _keep(self, hold: Hold, until: float) -> None:
        """Lets a hold live until min_hold is over, also if this process ends before."""
        hold.kept_until = until
        if until > hold.deadline:
            hold.due = 0.0
        self._renewals.arm(hold)

    async def _finish(self, key: Mapping[str, Any], until: float, timeout: float, unsure: bool = False) -> Tuple[str, str]:
        """Releases. Returns what became of it after a few tries; others follow until the hold has ended."""
        kind, detail, unsure = await self._release(key, until, timeout, 2 + 2 * len(self._servers), unsure)
        if kind == "unknown" and time.monotonic() < until:
            self.run(self._release(key, until, timeout, sys.maxsize, unsure))
        return kind, detail

    async def _release(
        self, key: Mapping[str, Any], until: float, timeout: float, tries: int, unsure: bool
    ) -> Tuple[str, str, bool]:
        n, detail = 0, ""
        try:
            while n == 0 or n < tries and time.monotonic() < until:
                answer = await self._servers.release(key, timeout)
                if answer.kind == "lost" and (unsure or answer.unsure):
                    return "ok", "", True  # an earlier request has released it
                if answer.kind not in NO_FACT and answer.kind != "denied":  # the right may be given back
                    return answer.kind, answer.detail, unsure
                unsure, detail, n = unsure or answer.kind == "unknown", answer.detail, n + 1
                await _pause(n, until)
        except asyncio.CancelledError:  # the loop ends: once more, so that the lock is not left for its TTL
            await self._servers.release(key, min(timeout, 1.0))
            raise
        return "unknown", detail, unsure

    def _over(self, hold: Hold, why: str) -> None:
        if why == "lost":
            self.lose(hold)
            if hold in self._renewals.holds:  # kept for min_hold
                self._renewals.discard(hold)
                self._event("released", hold, hold.since)
        elif why == "forgotten":
            self.drop(hold)
        else:  # min_hold is over
            self._renewals.discard(hold)
            self._event("released", hold, hold.since)
            self._finish_later(hold)

    def _finish_later(self, hold: Hold) -> "asyncio.Task[Any]":
        until = max(hold.deadline, time.monotonic()) if hold.since else time.monotonic() + hold.terms.ttl
        return self.run(self._finish(hold.key(), until, patience(hold.terms.ttl)))

    def lose(self, hold: Hold) -> None:
        """Ends a hold that is lost, and tells all who have to know. A caller who was interrupted may have begun with that."""
        hold.end("lost")
        if hold.ended != "lost" or hold not in self._renewals.holds:
            return
        self._renewals.discard(hold)
        hold.lost.set()
        self._event("lost", hold, hold.since)
        for call in hold.when_lost:
            call()
        lease = hold.lease()
        if lease is not None and hold.terms.on_lost is not None:
            self._lost(lease)

    def lose_all(self) -> None:
        """Ends all holds of a loop that has ended."""
        for hold in self.holds:
            self.lose(hold)

    def close_inherited(self) -> None:
        """Ends all in a forked child: the holds are its parent's, and so is the loop."""
        for hold in self.holds:
            hold.end("forked")
        self._servers.close_inherited()

    async def close(self, release: bool = True) -> None:
        """Ends what is under way, and releases all holds. Kept ones end when their TTL does."""
        self.closed = True
        for hold in list(self._renewals.holds) if release else ():
            if hold.end("closed"):
                self._renewals.discard(hold)
                hold.lost.set()
                self._event("released", hold, hold.since)
                self._finish_later(hold)
        for hold in list(self._asking):
            self.drop(hold, "closed")
        me = asyncio.current_task()
        for task in list(self._attempts):
            task.cancel()
        others = {t for t in self._tasks if t is not me}
        if others:
            await asyncio.wait(others, timeout=2.0)
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes the connections. Nothing is renewed any more."""
        self._renewals.stop()
        rest = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=1.5)
        self._servers.close()
        for _ in range(4):  # what was cancelled ends
            await asyncio.sleep(0)

    # By hand

    async def extend(self, hold: Hold, ttl: float) -> None:
        """Renews a hold by hand."""
        kind, start = "unknown", 0.0
        for n in range(1 + 2 * len(self._servers)):
            if n:
                await _pause(n, hold.deadline)
            if hold.ended or time.monotonic() >= hold.deadline:
                self.lose(hold)
                raise Lost(f"{hold.name!r} is lost")
            start = time.monotonic()
            kind = (await self._servers.renew([hold.renewal(ttl)], patience(hold.terms.ttl))).get(0, "unknown")
            if kind in ("ok", "lost", "invalid", "unsupported", "denied"):
                break
        if kind == "ok":
            hold.prolong(start + ttl - margin(ttl))
            if hold.remaining() > 0:
                self._renewals.arm(hold)
                return
            kind = "lost"
        if kind == "lost":
            self.lose(hold)
            raise Lost(f"{hold.name!r} is lost")
        error = _FINAL.get(kind, Unavailable)
        raise error(f"{hold.name!r} was not extended by {ttl} s: the server's answer is {kind}")

    async def holders(self, name: str) -> List[Holder]:
        """Returns the holders of a lock."""
        check_name(name)
        answer = await self._servers.ask("/v1/locks/" + segment(name), 5.0)
        if answer.kind == "ok" and answer.body.get("name") == name:
            return holders(answer.body.get("holders"))
        raise _FINAL.get(answer.kind, Unavailable)(answer.detail)

    def _event(self, kind: str, hold: Hold, since: float) -> None:
        self._tell(Event(kind, hold.name, max(0.0, time.monotonic() - since)))


def _is_over(hold: Hold, answer: Optional[Answer]) -> bool:
    """Reports whether an answer to a release leaves nothing to be done or told."""
    return answer is not None and answer.kind == "ok" and hold.ended == "released"


def again(e: Error, client: Client) -> bool:
    """Reports whether a candidate goes on after an error: a right may be given back, and a server may be mended."""
    return isinstance(e, (Unavailable, Lost)) or isinstance(e, Denied) and client.let_in


async def _pause(failures: int, end: float) -> None:
    pause = min(1.0, 0.025 * 2 ** min(failures, 10)) * random.uniform(0.5, 1)
    await asyncio.sleep(max(0.0, min(pause, end - time.monotonic())))
