package opening

import (
	"bytes"
	"context"
	"net"
	"time"
)

// Bounds of a probe. A server that says nothing for so long is not asked again: a database that is overloaded counts
// connections that make no sense.
const (
	dialTimeout  = time.Second
	greetingTime = 300 * time.Millisecond
	answerTime   = 500 * time.Millisecond
)

// Speaks returns the protocol that a server speaks: Redis, MySQL, PostgreSQL, ZooKeeper or HTTP; "" if that is not
// plain. It asks again only a server that closes the connection.
func Speaks(ctx context.Context, addr string) string {
	for _, messages := range [][]string{
		{"", "GET / HTTP/1.0\r\n\r\n"},       // MySQL greets, and Redis knows a GET too
		{"ruok\n"},                           // ZooKeeper, which would wait for more of the next
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f"}, // PostgreSQL's SSLRequest
	} {
		answer, closed := ask(ctx, addr, messages)
		if protocol := protocolOf([]byte(answer)); protocol != "" || !closed {
			return protocol
		}
	}
	return ""
}

// ask sends one message after the other until the server answers, and returns the beginning of the answer. closed says that
// there was none before the server closed the connection.
func ask(ctx context.Context, addr string, messages []string) (answer string, closed bool) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 512)
	for _, m := range messages {
		wait := answerTime
		if m == "" {
			wait = greetingTime
		}
		if ctx.Err() != nil || conn.SetDeadline(time.Now().Add(wait)) != nil {
			return "", false
		}
		if _, err := conn.Write([]byte(m)); err != nil {
			return "", true
		}
		n, err := conn.Read(buf)
		if n > 0 {
			return string(buf[:n]), false
		}
		if late, ok := err.(net.Error); !ok || !late.Timeout() {
			return "", true
		}
	}
	return "", false
}

// protocolOf returns the protocol of which text is the beginning of an answer.
func protocolOf(text []byte) string {
	has := func(prefixes ...string) bool {
		for _, p := range prefixes {
			if bytes.HasPrefix(text, []byte(p)) {
				return true
			}
		}
		return false
	}
	switch {
	case has("+PONG", "-NOAUTH", "-ERR", "-DENIED", "-LOADING", "-MISCONF", "-NOPERM"):
		return "Redis"
	case has("imok", "ruok is not executed"):
		return "ZooKeeper"
	case has("HTTP/"), len(text) >= 9 && text[3] == 4 && text[0] == 0: // a SETTINGS frame
		return "HTTP"
	case len(text) > 5 && text[3] == 0 && (text[4] == 10 || text[4] == 0xff):
		return "MySQL"
	case string(text) == "N", string(text) == "S", has("E\x00\x00"):
		return "PostgreSQL"
	}
	return ""
}
