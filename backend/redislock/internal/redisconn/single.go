package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/wait"
)

// NewSingle returns the client of one server.
func NewSingle(name string, s Server) Client { return singleClient{s, name} }

// singleClient is the client of one server.
type singleClient struct {
	Server
	name string
}

func (s singleClient) Do(ctx context.Context, _ string, args []string) (any, error) {
	reply, err := s.Server.Do(ctx, args)
	if err == nil {
		return reply, nil
	}
	for p := retryPauses(0); isNotReady(err) && p.wait(ctx); {
		reply, err = s.Server.Do(ctx, args)
	}
	return reply, explainSingle(err)
}

func isNotReady(err error) bool {
	why, _ := redirectionOf(err)
	return why == notReady
}

func areNotReady(commands [][]string, got []Answer) bool {
	why, _ := redirectionOfAll(commands, got)
	return why == notReady
}

func (s singleClient) DoAll(ctx context.Context, _ string, commands [][]string) []Answer {
	got := s.Server.DoAll(ctx, commands)
	if FirstError(got) == nil {
		return got
	}
	for p := retryPauses(0); areNotReady(commands, got) && p.wait(ctx); {
		got = s.Server.DoAll(ctx, commands)
	}
	for i := range got {
		got[i].Err = explainSingle(got[i].Err)
	}
	return got
}

// explainSingle explains the error of a server that is part of a cluster.
func explainSingle(err error) error {
	if err == nil {
		return nil
	}
	if re, is := AsReply(err); is && (re.HasCode("MOVED") || re.HasCode("ASK") || re.HasCode("CROSSSLOT")) {
		return Refuse(fmt.Sprintf("the server is part of a Redis Cluster: want redis+cluster://, or a client for clusters: %v", re), re).Lasts()
	}
	return err
}

func (s singleClient) Slot(string) int { return 0 }

func (s singleClient) Slotted() bool { return false }

func (s singleClient) Name() string { return s.name }

func (s singleClient) Refresh() {}

func (s singleClient) At(context.Context, string) (Server, error) { return s.Server, nil }

func (s singleClient) All(context.Context) ([]Server, error) { return []Server{s.Server}, nil }

// NotExecuted reports whether a server refused to execute the command because another server has the
// key, or because it is not ready.
func NotExecuted(err error) bool {
	why, _ := redirectionOf(err)
	return why != executed
}

// Apart reports whether a server refused a command while the slot of its keys moves, because it has not all of them.
func Apart(err error) bool {
	re, is := AsReply(err)
	return is && (re.HasCode("TRYAGAIN") || re.HasCode("ASK"))
}

// A command that a server refused because another server has its key, or because it is not ready,
// was not executed. It is sent again a few times: moving a key does not take long. No other command
// is sent again.
const (
	maxSends   = 8
	apartSends = 4 // while a slot moves: what needs no other key can go on
	minPause   = 10 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// redirection is where a server sends a command.
type redirection uint8

const (
	executed redirection = iota // nowhere: it was executed, or may have been
	notReady                    // here again, or elsewhere
	movedTo                     // to an address, and all later ones for the slot
	askAt                       // to an address, this once
)

// redirectionOf returns the redirection in err, and its address.
func redirectionOf(err error) (why redirection, addr string) {
	if err == nil {
		return executed, ""
	}
	re, is := AsReply(err)
	if !is {
		return executed, ""
	}
	words := strings.Fields(re.Text)
	switch words = append(words, "", "", ""); words[0] {
	case "MOVED", "ASK":
		addr := redirectAddr(words[2])
		switch {
		case addr == "":
			return notReady, "" // the slot table will know
		case words[0] == "ASK":
			return askAt, addr
		}
		return movedTo, addr
	case "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN":
		return notReady, ""
	}
	if re.HasCode("READONLY") {
		return notReady, ""
	}
	return executed, ""
}

// redirectAddr returns the address in a redirection, in which IPv6 addresses have no brackets. It
// returns "" if the server does not know the host.
func redirectAddr(text string) string {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return ""
	}
	switch host := strings.Trim(text[:at], "[]"); host {
	case "", "?":
		return ""
	default:
		return net.JoinHostPort(host, text[at+1:])
	}
}

// retryPauses counts the pauses between repetitions.
type retryPauses int

// wait waits for the next pause, and reports whether ctx lives. It does not wait behind the last repetition.
func (p *retryPauses) wait(ctx context.Context) bool {
	if *p == maxSends-1 {
		return false
	}
	pause := wait.Backoff(int(*p), minPause, maxPause)
	*p++
	return wait.Sleep(ctx, pause) == nil
}

// withAsking puts ASKING before each command or transaction. The server that is just getting a key
// executes only such commands.
func withAsking(commands [][]string) [][]string {
	list := make([][]string, 0, 2*len(commands))
	inside := false
	for _, c := range commands {
		if !inside {
			list = append(list, []string{"ASKING"})
		}
		switch c[0] {
		case "MULTI":
			inside = true
		case "EXEC", "DISCARD":
			inside = false
		}
		list = append(list, c)
	}
	return list
}

// withoutAsking removes the answers to ASKING.
func withoutAsking(sent [][]string, got []Answer) []Answer {
	kept := got[:0]
	for i, a := range got {
		if sent[i][0] != "ASKING" {
			kept = append(kept, a)
		}
	}
	return kept
}

// redirectionOfAll returns the redirection of commands that had no effect.
func redirectionOfAll(commands [][]string, got []Answer) (why redirection, addr string) {
	for i, a := range got {
		switch w, to := redirectionOf(a.Err); {
		case w != executed:
			if why == executed {
				why, addr = w, to
			}
		case !harmless(commands[i][0], a):
			return executed, ""
		}
	}
	return why, addr
}

// harmless reports whether a command changed nothing.
func harmless(command string, a Answer) bool {
	switch command {
	case "MULTI", "DISCARD", "WAIT", "UNWATCH", "GET", "PTTL", "EXISTS", "TIME":
		return true
	case "EXEC":
		re := (*ReplyError)(nil)
		return errors.As(a.Err, &re) && re.HasCode("EXECABORT")
	}
	return false
}
