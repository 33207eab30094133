"""Makes calls as the suite says, with the client for Python's threads. See program_test.go."""

import asyncio
import gc
import os
import queue
import signal
import sys
import threading
import time

import distlock
from words import add, client, fails, read, say, terms, wrong

locks, leases = {}, {}  # by the number of the call that made them
urls = {}
at_main = queue.SimpleQueue()  # what an interrupt can end


def opens(call, a):
    where, access = client(a)
    locks[call], urls[call] = distlock.Locks(*where, **access), where
    say(call, "opened")


def probe(a):
    """Another client of the same servers."""
    return distlock.Locks(*urls[a["client"]])


def watch(call, lease):
    """Says when the lease was trusted last, once it is lost."""
    trusted = 0
    while True:
        now = time.monotonic_ns()
        try:
            lease.check()
        except distlock.Lost:
            break
        trusted = now
        lease.lost.wait(0.01)
    if lease.lost.wait(60):  # else it was released
        say(call, "lost", trusted)


def lock(call, a):
    lease = leases[call] = locks[a["client"]].lock(a["name"], **terms(a))
    if "watch" in a:
        threading.Thread(target=watch, args=(call, lease), daemon=True).start()
    say(call, "held", lease.fence)


def check(call, a):
    leases[a["lease"]].check()
    say(call, "held")


def extend(call, a):
    leases[a["lease"]].extend(float(a["ttl"]) / 1000)
    say(call, "held")


def release(call, a):
    leases[a["lease"]].release()
    say(call, "released")


def cancel(call, a):
    os.kill(os.getpid(), signal.SIGINT)


def twice(call, a):
    lease, other = locks[a["client"]].lock(a["name"], ttl=60, wait=30), probe(a)
    found = []
    for _ in range(2):
        ran, held = False, False
        try:
            with lease:
                ran = True
                taken = other.try_lock(a["name"])
                held = taken is None
                if taken is not None:
                    taken.release()
            found.append("locked" if held else "unlocked")
        except Exception:
            found.append("failed" if held else "told" if ran else "refused")
    say(call, *found)


def shared(call, a):
    limit = int(a["limit"])
    thing, other = locks[a["client"]].lock(a["name"], ttl=60, wait=30, limit=limit), probe(a)
    in_, over, counts = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()], threading.Lock()
    inside = most = ran = raised = 0
    free = -1

    def use(n):
        nonlocal inside, most, ran, raised, free
        try:
            with thing:
                with counts:
                    inside, ran = inside + 1, ran + 1
                    most = max(most, inside)
                in_[n].set()
                if n == 0:
                    in_[1].wait(0.5)
                else:
                    over[0].wait(30)
                    permits = [other.try_lock(a["name"], limit=limit) for _ in range(limit)]
                    free = sum(p is not None for p in permits)
                    for p in permits:
                        if p is not None:
                            p.release()
                with counts:
                    inside -= 1
        except Exception:
            raised += 1
        over[n].set()
        in_[n].set()

    users = [threading.Thread(target=use, args=(n,), daemon=True) for n in range(2)]
    users[0].start()
    in_[0].wait(30)
    users[1].start()
    for u in users:
        u.join(60)
    say(call, most, ran, raised, free)


def turns(call, a):
    n, total, order, over = int(a["n"]), int(a["total"]), [], threading.Event()

    def take(i):
        while not over.is_set():
            with locks[a["client"]].lock(a["name"], ttl=60):
                order.append(i)
                if len(order) >= total:
                    over.set()

    waiters = [threading.Thread(target=take, args=(i,), daemon=True) for i in range(n)]
    for w in waiters:
        w.start()
    say(call, "started")
    over.wait()
    say(call, "turns", *(order[:total].count(i) for i in range(n)))


def forget(call, a):
    del leases[a["lease"]]
    say(call, "forgotten")


def collect(call, a):
    gc.collect()
    say(call, "collected")


def fork(call, a):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            leases[a["lease"]].check()
        except distlock.Lost:
            with locks[a["client"]].lock(a["name"], wait=60):
                status = 0
        finally:
            os._exit(status)
    say(call, "child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Late:
    async def __call__(self):
        return None


def idiom(call, a):
    case, mine = a["case"], locks[a["client"]]
    if case == "a guard of what returns an awaitable":
        try:
            asyncio.run(mine.guard(a["name"])(Late())())
        except TypeError:
            return say(call, "right")
        return say(call, "wrong", "the work is done after the lock was released")
    raise KeyError(case)


def badly(call, a):
    wrong(distlock.Locks, locks[a["client"]], a["case"], a.get("url"))
    say(call, "accepted")


def count(call, a):
    for _ in range(int(a["rounds"])):
        with locks[a["client"]].lock(a["name"]) as lease:
            add(a["file"], lease.fence)
    say(call, "counted")


CALLS = {
    "open": opens, "lock": lock, "check": check, "extend": extend, "release": release, "cancel": cancel, "twice": twice,
    "shared": shared, "turns": turns, "forget": forget, "collect": collect, "fork": fork, "idiom": idiom, "wrong": badly,
    "count": count,
}


def make(call, word, a):
    try:
        CALLS[word](call, a)
    except KeyboardInterrupt:
        say(call, "cancelled")
    except Exception as e:
        fails(call, e)


def hear():
    for line in sys.stdin:
        call, word, a = read(line)
        if word == "exit":
            break
        if word in ("open", "cancel"):
            make(call, word, a)
        elif "main" in a:
            at_main.put((call, word, a))
        else:
            threading.Thread(target=make, args=(call, word, a), daemon=True, name="call").start()
    at_main.put(None)


hearer = threading.Thread(target=hear, daemon=True)
hearer.start()
while True:
    try:
        order = at_main.get()
        if order is None:
            break
        make(*order)
    except KeyboardInterrupt:
        pass
for t in threading.enumerate():
    if t.name == "call":
        t.join()
hearer.join()  # the end of the interpreter releases what is held if no thread works on
