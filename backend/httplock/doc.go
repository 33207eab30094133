// Package httplock keeps locks on a distlock server (the command distlock serve, or package server), which
// keeps them in a backend of its own: Redis, SQLite, PostgreSQL and so on.
//
//	b, err := httplock.Open(ctx, "https://:TOKEN@locks1,locks2/")
//
// A client through a server and a client with its own connection to the server's backend share the same
// locks. Caps has the values of the server's backend, and its name: so both order several locks alike.
//
// # URL
//
//	http://host1,host2:8080/prefix
//	https://:TOKEN@host1,host2/prefix?ca=authority.pem
//	http+unix:///run/distlock.sock
//
// The default ports are 80 and 443. The path is the prefix that a proxy puts before the server's own paths. https
// uses TLS: ca names a file with trusted authorities, cert and key the client's own certificate, and servername the
// name in the certificates of all servers, instead of the hosts. The files are read again for each connection; through
// a proxy ca is read once.
//
//	password_file  a file with the token, which is read again when a server refuses the token
//	timeout        how long Open waits for an answer; default 5s
//
// The token is the URL's password, without a user, or in a file, or comes from OpenOptions.Credentials. It is never part of
// an error. It is sent in the clear over http. HTTP_PROXY, HTTPS_PROXY and NO_PROXY are obeyed, except for Unix sockets.
//
// # Several servers
//
// All servers of a URL must have the same backend. One of them is used, at first the first one, until it does
// not answer, drains, or reports that its backend failed; then the next one. A call that may change
// something is sent to the next server only if it is certain that the server before it did nothing.
// Otherwise its outcome is unknown, and the caller decides.
//
// Only an answer with the name of the backend that Open has seen, and with the request's own header
// Distlock-Request, states a fact, or a line of a connection that began with such an answer. A proxy's own 404 or
// 410, or the answer to another request, means that the outcome is unknown. If a server has another backend than
// the one that was opened, nothing is sent to it until it has the old one again: two backends do not know each
// other's locks.
//
// # Trust
//
// A lock is trusted for its TTL from before the request that the server answered. Nothing that is pushed
// extends that, and nothing is remembered: each Acquire and each Renew is a call of the server. No lock depends on
// a connection, so servers may be restarted and exchanged while locks are held.
//
// # Tokens and rights that change
//
// A server that refuses the token, or a right, has done nothing. Both may be given back, so the server is unavailable
// meanwhile: waits go on, and releases are repeated. Only Open is ErrInvalid for a wrong token, and List, Inspect and Revoke,
// which ask once, are.
//
// # Watch and news
//
// Each watch is a stream of events, on a connection of its own. A stream that breaks, or is silent for three
// pings, is opened again, at another server if need be. Then the watch signals, since it may
// have missed a release.
//
// If the server's backend can ask holders for their locks, the client keeps one more stream for such news
// to each server at which it acquires, from the first acquire on. A revocable lock is acquired only while
// that stream is open. A server that was restarted has forgotten which client a lock belongs to: until the next
// acquire for it, the lock can't be asked for. Servers behind one address, which a load balancer chooses
// from, make asking a matter of chance: name them in the URL.
package httplock
