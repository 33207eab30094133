import distlock

locks = distlock.Locks("http://localhost:7077")
with locks.lock("report", ttl=30, wait=10) as lease:  # raises Held if others have it for longer
    for part in range(3):
        lease.check()  # raises Lost in time
        print(f"part {part}, fence {lease.fence}")
