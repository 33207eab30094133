package testserver

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// EtcdGrant lets a user do something with all keys that begin with Prefix.
type EtcdGrant struct {
	Prefix      string
	Read, Write bool
}

func (g EtcdGrant) kind() string {
	switch {
	case g.Read && g.Write:
		return "READWRITE"
	case g.Write:
		return "WRITE"
	}
	return "READ"
}

// AddUser makes a user who may do what is granted, and returns the URL for that user.
func (s *EtcdServer) AddUser(name, password string, grants ...EtcdGrant) string {
	s.tb.Helper()
	token, err := s.login(startTimeout)
	if err == nil {
		err = s.addUser(token, name, password, grants)
	}
	if err != nil {
		s.tb.Fatalf("testserver: user %s: %v", name, err)
	}
	return s.options.url(name, password, s.cert, s.key, s.Addr())
}

type body map[string]any

func (s *EtcdServer) addUser(token, name, password string, grants []EtcdGrant) error {
	err := s.posts(token, call{"user/add", body{"name": name, "password": password}},
		call{"role/add", body{"name": name}}, call{"user/grant", body{"user": name, "role": name}})
	for _, g := range grants {
		if err == nil {
			key := []byte(g.Prefix)
			perm := body{"permType": g.kind(), "key": key, "range_end": successor(key)}
			err = s.posts(token, call{"role/grant", body{"name": name, "perm": perm}})
		}
	}
	return err
}

// successor is the first key behind all that begin with prefix; for an empty one what
// etcd takes for the end of all.
func successor(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) == 0 {
		return []byte{0}
	}
	end[len(end)-1]++
	return end
}

// Protect gives root a password from now on: nobody else may do anything any more.
func (s *EtcdServer) Protect(password string) {
	s.tb.Helper()
	s.options.Password = password
	if err := s.protect(); err != nil {
		s.tb.Fatalf("testserver: %v", err)
	}
}

// protect lets root alone in, if there is a password.
func (s *EtcdServer) protect() error {
	if s.options.Password == "" {
		return nil
	}
	return s.posts("", call{"user/add", body{"name": "root", "password": s.options.Password}},
		call{"user/grant", body{"user": "root", "role": "root"}}, call{"enable", body{}})
}

// login returns a token that root may use for some minutes.
func (s *EtcdServer) login(timeout time.Duration) (string, error) {
	if s.options.Password == "" {
		return "", nil
	}
	var answer struct{ Token string }
	err := s.postWithin(timeout, "/v3/auth/authenticate", "", body{"name": "root", "password": s.options.Password}, &answer)
	return answer.Token, err
}

type call struct {
	to   string
	body body
}

// posts makes calls that change who may do what, one after the other.
func (s *EtcdServer) posts(token string, calls ...call) error {
	for _, c := range calls {
		if err := s.change(token, c); err != nil {
			return err
		}
	}
	return nil
}

// change makes a call. It repeats a call whose outcome the server does not know, and which
// may have been done.
func (s *EtcdServer) change(token string, c call) error {
	deadline := time.Now().Add(startTimeout)
	for first := true; ; first = false {
		err := s.post("/v3/auth/"+c.to, token, c.body, new(any))
		if err != nil && !first && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		if !errors.Is(err, errNotYet) || time.Now().After(deadline) {
			return err
		}
	}
}
