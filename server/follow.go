package server

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
)

// Many people may look at a page all day. What net/http keeps for a request that lasts, its buffers and two deep stacks, would
// be most of their memory. So a stream of changes takes the connection from it, where that is HTTP/1's own, and has two
// goroutines with small stacks: one waits, and one notices that the client has gone. Kept goroutines take the steps.

// follow answers with a stream of events, which send sends until ctx ends. It may go on after the handler has returned, with
// an exchange of its own.
func (ex *exchange) follow(send func(ctx context.Context, e *events) error) error {
	own := &exchange{s: ex.s, r: ex.r, who: ex.who, name: ex.name}
	if !ex.ownsConn() {
		own.w = ex.w
	} else {
		own.ctx = context.WithoutCancel(ex.r.Context()) // which ends when the handler returns
	}
	ctx, end, err := own.stream()
	if err != nil {
		return err
	}
	e := ex.events()
	e.c = own
	if own.w != nil {
		defer end()
		return send(ctx, e)
	}
	began := time.Now()
	if e.conn, err = ex.takeConn(); err != nil {
		end()
		return err
	}
	e.control, e.step.taken = nil, make(chan error)
	ex.parts = true
	go func() {
		defer own.recovered()
		defer end()
		defer own.s.connections.ended(own.ctx)
		defer e.conn.Close()
		kind := httpwire.OK
		if err := send(e.whileRead(ctx), e); err != nil {
			kind = problemOf(err).Kind
		}
		own.note(own.r.Pattern, http.StatusOK, kind, began)
	}()
	return nil
}

// ownsConn reports whether takeConn can take the connection.
func (ex *exchange) ownsConn() bool {
	if ex.r.Method != http.MethodGet || ex.r.ProtoMajor != 1 { // HEAD has no events; a wrapper of HTTP/2 may claim to be a Hijacker
		return false
	}
	for w := http.ResponseWriter(ex.w); ; {
		switch under := w.(type) {
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = under.Unwrap()
		default:
			return false
		}
	}
}

// takeConn takes the connection, and begins the answer, whose end is that of the connection.
func (ex *exchange) takeConn() (net.Conn, error) {
	h := ex.w.Header()
	h.Set("Connection", "close")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	head := bytes.NewBufferString("HTTP/1.1 200 OK\r\n")
	_ = h.Write(head)
	head.WriteString("\r\n")
	conn, _, err := http.NewResponseController(ex.w).Hijack()
	if err != nil {
		return nil, err
	}
	ex.w.status = http.StatusOK
	_ = conn.SetDeadline(time.Now().Add(writeTime))
	if _, err = conn.Write(head.Bytes()); err != nil {
		conn.Close()
		ex.s.connections.ended(ex.r.Context())
	}
	return conn, err
}

// whileRead returns a context that ends when the client closes the connection, or sends anything.
func (e *events) whileRead(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	_ = e.conn.SetReadDeadline(time.Time{})
	go func() {
		defer cancel()
		_, _ = e.conn.Read(make([]byte, 1))
	}()
	return ctx
}
