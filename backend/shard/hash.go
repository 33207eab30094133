package shard

// pick is the index of the member that has a name: that with the greatest score
// (rendezvous or highest random weight hashing, Thaler and Ravishankar 1998). So
// a member that is added takes names from all others and moves no other, and one that is
// taken away leaves the names of the others where they are. seeds are the members' hashes;
// there is at least one.
func pick(seeds []uint64, name string) int {
	h, best := hash(name), 0
	for i := range seeds {
		if score(seeds[i], h) > score(seeds[best], h) {
			best = i
		}
	}
	return best
}

// score must never change: programs of different versions have to agree.
func score(member, name uint64) uint64 { return mix(member ^ name) }

// hash is FNV-1a, mixed.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: every bit of x changes half of the result's.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
