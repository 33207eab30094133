package redisconn

import (
	"context"
	"errors"
	"testing"

	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The error of a handshake that the server refuses is the error of each command, of which nothing was written.
func TestRefusedHandshake(t *testing.T) {
	s := NewServer(Options{Addr: testserver.SharedRedis(t).Addr(), Credentials: func(context.Context) (string, string, error) { return "nobody", "wrong", nil }})
	defer s.Close()
	_, err := s.Dedicated(t.Context())
	for _, a := range append(s.DoAll(t.Context(), [][]string{{"PING"}, {"PING"}}), Answer{Err: err}) {
		if re, is := AsReply(a.Err); !is || !re.HasCode("WRONGPASS") || !errors.As(a.Err, &unwrittenError{}) {
			t.Errorf("%v, %v", a.Reply, a.Err)
		}
	}
}

// A server repeats the beginning of a command that it does not know, in which an Owner may stand.
func TestErrorsLeaveOutArguments(t *testing.T) {
	err := Explain(&ReplyError{Text: "ERR unknown command 'DELEX', with args beginning with: 'a name' 'IFEQ' 'an owner'"})
	if err.Error() != "redis: ERR unknown command 'DELEX'" {
		t.Error(err)
	}
}
