package testserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"
)

// chromium is not the script in PATH, which does not end its browser with itself.
var chromium = &program{name: "/usr/lib/chromium/chromium-headless-shell", env: "DISTLOCK_TEST_CHROMIUM", debian: "chromium-headless-shell"}

// Chromium is a browser without a window, which a test controls through its DevTools.
type Chromium struct {
	*Process
	control string
}

// Browser starts a browser of the test's own.
func Browser(tb testing.TB) *Chromium {
	tb.Helper()
	c := &Chromium{Process: newProcess(tb, "chromium", chromium)}
	c.ready = c.ping
	c.usable(c.launch(func() error {
		c.args = []string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + c.data(),
			"--remote-debugging-address=127.0.0.1", "--remote-debugging-port=" + strconv.Itoa(c.port), "about:blank",
		}
		return nil
	}))
	tb.Cleanup(func() {
		c.end()
		for range 100 { // its children may still write
			if os.RemoveAll(c.dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return c
}

// Control returns the URL of the browser's DevTools.
func (c *Chromium) Control() string { return c.control }

func (c *Chromium) ping() error {
	client := &http.Client{Timeout: pollTimeout}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + c.Addr() + "/json/version")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var v struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || v.URL == "" {
		return fmt.Errorf("chromium at %s: %w", c.Addr(), err)
	}
	c.control = v.URL
	return nil
}
