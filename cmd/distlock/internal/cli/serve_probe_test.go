//go:build unix

package cli

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The probe finds a server that is ready, and none that drains or is gone; systemd learns the same.
func TestServeHealth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	told := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	defer told.Close()
	wants := func(want string) {
		t.Helper()
		text := make([]byte, 100)
		n := must.Get(told.Read(text))(t)
		if string(text[:n]) != want {
			t.Errorf("systemd was told %q; want %q", text[:n], want)
		}
	}
	cert, key, _ := certificate(t, "locks.example")
	_, ca := authority(t)
	mutual := []string{"127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", ca} // refuses the probe, and so lives
	for _, listen := range [][]string{{"127.0.0.1:0"}, {"127.0.0.1:0", "--tls-cert", cert, "--tls-key", key}, mutual, {"unix:" + filepath.Join(dir, "s"), "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", ca}} {
		p := command(t, "mem:", append([]string{"serve", "--drain", "1m", "--listen"}, listen...)...)
		p.Env = append(p.Env, "NOTIFY_SOCKET="+socket)
		p.begin()
		wants("READY=1")
		p.out.await(t, " serves ")
		if !strings.HasPrefix(listen[0], "unix:") {
			listen[0] = regexp.MustCompile(`(?m)^(127\S+) serves`).FindStringSubmatch(p.out.String())[1]
		}
		probe := append([]string{"serve", "--health", "--listen"}, listen...)
		finishWith(t, "mem:", 0, probe...)
		p.send(syscall.SIGTERM)
		wants("STOPPING=1")
		locktest.Eventually(t, "the probe fails while it drains", func() bool {
			return &listen[0] == &mutual[0] || finish(t, "mem:", probe...).ProcessState.ExitCode() == exitUnreachable
		})
		p.send(syscall.SIGKILL)
		p.code()
		finishWith(t, "mem:", exitUnreachable, probe...)
	}
}

// The probe needs no name of this host, which a container may not know.
func TestReachable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:7077": "127.0.0.1:7077", ":7077": "127.0.0.1:7077", "[::]:7077": "[::1]:7077",
		"10.0.0.1:7077": "10.0.0.1:7077", "locks.example:7077": "locks.example:7077", "[fd00::1]:7077": "[fd00::1]:7077",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("%s is reached at %s; want %s", listen, got, want)
		}
	}
}

// A server behind nginx, as the example has it, serves waits, streams and connections of calls.
func TestServeBehindNginx(t *testing.T) {
	t.Parallel()
	path := testserver.Tool(t, "nginx")
	p := start(t, "mem:", "serve", "--listen", "127.0.0.1:0", "--drain", "0s")
	p.out.await(t, " serves ")
	addr := regexp.MustCompile(`(?m)^(127\S+) serves`).FindStringSubmatch(p.out.String())[1]
	cert, key, _ := certificate(t, "locks.example")
	dir, front := t.TempDir(), testserver.FreeAddr(t)
	text := string(must.Get(os.ReadFile("../../../../contrib/proxy/nginx.conf"))(t))
	text = strings.NewReplacer("127.0.0.1:7077", addr, "8443", front, "/etc/nginx/tls.crt", cert, "/etc/nginx/tls.key", key).Replace(text)
	config := filepath.Join(dir, "nginx.conf")
	temp := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += fmt.Sprintf("%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	text = fmt.Sprintf("daemon off; pid %s/pid; error_log stderr;\nevents {}\nhttp {\naccess_log off;\n%s%s}\n", dir, temp, text)
	must.OK(t, os.WriteFile(config, []byte(text), 0o600))
	nginx := exec.Command(path, "-c", config, "-p", dir, "-e", "stderr")
	nginx.Stderr = os.Stderr
	must.OK(t, testserver.Spawn(nginx))
	t.Cleanup(func() { nginx.Process.Signal(syscall.SIGTERM); nginx.Wait() })
	locktest.Eventually(t, "nginx listens", func() bool {
		c, err := net.Dial("tcp", front)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	conn := must.Get(tls.Dial("tcp", front, &tls.Config{InsecureSkipVerify: true}))(t)
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/calls HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: distlock-calls\r\n\r\n{\"index\":1}\n")
	lines := bufio.NewReader(conn)
	expect.Equal(t, must.Get(http.ReadResponse(lines, nil))(t).StatusCode, http.StatusSwitchingProtocols)
	expect.Equal(t, strings.Contains(must.Get(lines.ReadString('\n'))(t), `"index":1,"outcome":"invalid"`), true, "the answer to a call")
	_, ca := authority(t)
	url := "https://" + front + "/?ca=" + ca
	held, release := hold(t, url, "x")
	waits := start(t, url, "run", "x", "--", "echo", "inside")
	locktest.Eventually(t, "it waits", func() bool { return strings.Contains(finish(t, url, "show", "x").out.String(), "wait") })
	release()
	waits.must(0)
	held.must(0)
	waits.out.await(t, "inside")
}
