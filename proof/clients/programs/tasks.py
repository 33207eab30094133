"""Makes calls as the suite says, with the client for Python's asyncio. See program_test.go."""

import asyncio
import gc
import inspect
import sys
import time

from distlock import aio
from words import add, client, fails, read, say, terms, wrong

locks, leases, pending = {}, {}, {}  # by the number of the call that made them
urls = {}
watchers = set()


async def opens(call, a):
    where, access = client(a)
    locks[call], urls[call] = aio.Locks(*where, **access), where
    say(call, "opened")


def probe(a):
    """Another client of the same servers."""
    return aio.Locks(*urls[a["client"]])


async def watch(call, lease):
    """Says when the lease was trusted last, once it is lost."""
    trusted = 0
    while True:
        now = time.monotonic_ns()
        try:
            lease.check()
        except aio.Lost:
            break
        trusted = now
        await asyncio.sleep(0.01)
    await lease.lost.wait()
    say(call, "lost", trusted)


async def lock(call, a):
    lease = leases[call] = await locks[a["client"]].lock(a["name"], **terms(a))
    if "watch" in a:
        watchers.add(asyncio.ensure_future(watch(call, lease)))
    say(call, "held", lease.fence)


async def check(call, a):
    leases[a["lease"]].check()
    say(call, "held")


async def extend(call, a):
    await leases[a["lease"]].extend(float(a["ttl"]) / 1000)
    say(call, "held")


async def release(call, a):
    await leases[a["lease"]].release()
    say(call, "released")


async def cancel(call, a):
    pending[a["call"]].cancel()


async def twice(call, a):
    lease, other = locks[a["client"]].lock(a["name"], ttl=60, wait=30), probe(a)
    found = []
    for _ in range(2):
        ran, held = False, False
        try:
            async with lease:
                ran = True
                taken = await other.try_lock(a["name"])
                held = taken is None
                if taken is not None:
                    await taken.release()
            found.append("locked" if held else "unlocked")
        except Exception:
            found.append("failed" if held else "told" if ran else "refused")
    say(call, *found)


async def shared(call, a):
    limit = int(a["limit"])
    thing, other = locks[a["client"]].lock(a["name"], ttl=60, wait=30, limit=limit), probe(a)
    in_, over = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
    inside = most = ran = raised = 0
    free = -1

    async def use(n):
        nonlocal inside, most, ran, raised, free
        try:
            async with thing:
                inside, ran = inside + 1, ran + 1
                most = max(most, inside)
                in_[n].set()
                if n == 0:
                    try:
                        await asyncio.wait_for(in_[1].wait(), 0.5)
                    except asyncio.TimeoutError:
                        pass
                else:
                    await over[0].wait()
                    permits = [await other.try_lock(a["name"], limit=limit) for _ in range(limit)]
                    free = sum(p is not None for p in permits)
                    for p in permits:
                        if p is not None:
                            await p.release()
                inside -= 1
        except Exception:
            raised += 1
        over[n].set()
        in_[n].set()

    first = asyncio.ensure_future(use(0))
    await in_[0].wait()
    await asyncio.gather(first, use(1))
    say(call, most, ran, raised, free)


async def turns(call, a):
    n, total, order, over = int(a["n"]), int(a["total"]), [], asyncio.Event()

    async def take(i):
        while not over.is_set():
            async with locks[a["client"]].lock(a["name"], ttl=60):
                order.append(i)
                if len(order) >= total:
                    over.set()

    waiters = [asyncio.ensure_future(take(i)) for i in range(n)]
    say(call, "started")
    await over.wait()
    say(call, "turns", *(order[:total].count(i) for i in range(n)))
    await asyncio.gather(*waiters)


async def forget(call, a):
    del leases[a["lease"]]
    say(call, "forgotten")


async def collect(call, a):
    gc.collect()
    say(call, "collected")


class Late:
    async def __call__(self):
        return None


async def idiom(call, a):
    case, mine = a["case"], locks[a["client"]]
    if case == "a task of a lock":
        lease = await asyncio.create_task(mine.lock(a["name"]))
        await lease.release()
        return say(call, "right")
    if case == "a lock within a time":
        lease = await asyncio.wait_for(mine.lock(a["name"]), 60)
        await lease.release()
        return say(call, "right")
    if case == "a guard of what returns an awaitable":
        try:
            work = mine.guard(a["name"])(Late())
        except TypeError:
            return say(call, "right")
        assert inspect.isawaitable(work())
    raise KeyError(case)


async def badly(call, a):
    found = wrong(aio.Locks, locks[a["client"]], a["case"], a.get("url"))
    if inspect.isawaitable(found):
        await found
    say(call, "accepted")


async def count(call, a):
    for _ in range(int(a["rounds"])):
        async with locks[a["client"]].lock(a["name"]) as lease:
            add(a["file"], lease.fence)
    say(call, "counted")


CALLS = {
    "open": opens, "lock": lock, "check": check, "extend": extend, "release": release, "cancel": cancel, "twice": twice,
    "shared": shared, "turns": turns, "forget": forget, "collect": collect, "idiom": idiom, "wrong": badly, "count": count,
}


async def make(call, word, a):
    try:
        await CALLS[word](call, a)
    except asyncio.CancelledError:
        say(call, "cancelled")
    except Exception as e:
        fails(call, e)
    finally:
        pending.pop(call, None)


async def main():
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while True:
        line = (await lines.readline()).decode()
        if not line:
            break
        call, word, a = read(line)
        if word == "exit":
            break
        pending[call] = asyncio.ensure_future(make(call, word, a))


asyncio.run(main())
