import sys

import distlock

locks = distlock.Locks(*sys.argv[1:] or ["http://localhost:7077"])
try:
    with locks.lock("report", ttl=30, wait=10) as lease:
        for part in range(3):
            lease.check()  # raises Lost in time
            print(f"part {part}, fence {lease.fence}")
except distlock.Held as e:
    sys.exit(f"not now: {e}")
