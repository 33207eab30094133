//go:build linux

package chaos

import (
	"crypto/sha256"
	"net/url"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// database lets workers reach a database through a proxy; where is its URL as the server has it.
func database(s *scene, srv server, where string) {
	u, err := url.Parse(where)
	if err != nil {
		s.Fatal(err)
	}
	q := u.Query()
	q.Set("create", "true")
	u.RawQuery = q.Encode()
	s.direct = u.String()
	key := sha256.Sum256([]byte(hot)) // of the lock's row
	s.text = string(key[:])
	s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
	u.Host = s.proxy.Addr()
	s.url = u.String()
}

func sqlCells() []cell {
	mariadb := deployment{name: "mariadb", title: "MariaDB, rows", ttl: 2 * time.Second, start: func(s *scene) {
		srv := testserver.MariaDB(s.T, testserver.MariaDBOptions{})
		database(s, srv, srv.Database(s.T))
	}}
	postgres := deployment{name: "postgres", title: "PostgreSQL, rows", ttl: 2 * time.Second, start: func(s *scene) {
		srv := testserver.Postgres(s.T, testserver.PostgresOptions{})
		database(s, srv, srv.Database(s.T))
	}}
	return append(networkCells(mariadb), networkCells(postgres)...)
}

// networkCells returns what every deployment of one server behind a proxy must survive, and a pause.
func networkCells(d deployment) []cell {
	return []cell{
		{d, killClient, "kill-client", safe},
		{d, pauseClient, "pause-client", withFences},
		{d, killServer, "kill-server", safe},
		{d, bounceServer, "bounce-server", safe},
		{d, pauseServer, "pause-server", safe},
		{d, cutConnections, "cut", safe},
		{d, blackHole, "black-hole", safe},
		{d, delay, "delay", safe},
		{d, loseRequests, "lose-requests", safe},
		{d, loseAnswers, "lose-answers", safe},
		{d, storm, "storm", safe},
	}
}
