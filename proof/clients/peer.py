"""Takes locks as the test says, with the client for Python. See peer_test.go."""

import os
import sys
import threading
import time

import distlock

locks = distlock.Locks(*sys.argv[1:], token=os.environ.get("DISTLOCK_TOKEN"))
lease = None
output = threading.Lock()


def say(*words):
    with output:
        print(*words, flush=True)


def watch(lease):
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
        say("lost", trusted)


def lock(name, ttl, wait, mode, limit):
    global lease
    wait = float(wait)
    lease = locks.lock(
        name, ttl=float(ttl) / 1000, wait=None if wait < 0 else wait / 1000, mode=mode, limit=int(limit) or None
    )
    threading.Thread(target=watch, args=(lease,), daemon=True).start()
    say("held", lease.fence)


def release():
    lease.release()
    say("released")


def note(file, what, lease):
    with open(file + ".history", "a") as f:
        f.write(f"{what} {lease.fence}\n")


def count(name, file, rounds):
    for _ in range(int(rounds)):
        with locks.lock(name) as lease:
            note(file, "begin", lease)
            with open(file) as f:
                n, fence = map(int, f.read().split())
            assert lease.fence > fence, "an older fence"
            with open(file, "w") as f:
                f.write(f"{n + 1} {lease.fence}")
            note(file, "end", lease)
    say("counted")


for line in sys.stdin:
    call, *words = line.split()
    try:
        {"lock": lock, "release": release, "count": count}[call](*words)
    except distlock.Error as e:
        say("error", type(e).__name__, e)
