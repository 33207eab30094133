"""Distributed locks of a distlock server, with the standard library only.

    import distlock

    locks = distlock.Locks("http://localhost:7077")
    with locks.lock("report", ttl=30, wait=10) as lease:
        write(report, fence=lease.fence)

distlock.aio has the same for asyncio. Times are in seconds.
"""

from ._errors import Denied, Error, Event, Held, Holder, Invalid, Lost, Unavailable
from ._leases import Lease, Leases
from ._locks import Locks

__all__ = [
    "Denied", "Error", "Event", "Held", "Holder", "Invalid", "Lease", "Leases", "Locks", "Lost", "Unavailable",
]
