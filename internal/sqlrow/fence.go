package sqlrow

// A fence is a grant's number followed by spanBits bits for the hand-offs inside its
// process. The number is one more than the last, and at least the server's clock in µs
// since 1970: so it increases over a lost table too. Fences stay below 1<<63, and room is
// left for them until the year 2255.
const (
	spanBits = 10
	span     = 1 << spanBits
)
