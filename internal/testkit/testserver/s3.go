package testserver

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// The credentials of S3 servers.
const (
	S3AccessKey = "test"
	S3SecretKey = "test-secret"
)

// S3Server is a versitygw, which speaks S3's protocol over a folder. Its data survives Kill and Stop.
type S3Server struct{ *Process }

var sharedS3 shared[*S3Server]

// SharedS3 returns a server that all tests of the process use: they must not stop it, and choose names of their own.
func SharedS3(tb testing.TB) *S3Server {
	tb.Helper()
	return sharedS3.get(func() *S3Server { return startS3(tb, S3Options{}) })
}

// S3 starts a server of the test's own, with one bucket, called bucket. Only tests that are TestLong may use it: make test-long
// alone builds it.
func S3(tb testing.TB, o S3Options) *S3Server {
	tb.Helper()
	s := startS3(tb, o)
	tb.Cleanup(s.end)
	return s
}

// S3Options say how a server is set up.
type S3Options struct {
	// Sidecar keeps ETags in files beside those of the objects, as where a file system has no extended attributes. Then a
	// GET may answer with the ETag of one version and the content of another.
	Sidecar bool
}

// Endpoint returns the server's URL.
func (s *S3Server) Endpoint() string { return "http://" + s.Addr() }

func startS3(tb testing.TB, o S3Options) *S3Server {
	tb.Helper()
	s := &S3Server{Process: newProcess(tb, "s3", &program{cached: "versitygw"})}
	s.ready = s.answers
	s.usable(os.MkdirAll(filepath.Join(s.data(), "bucket"), 0o700))
	s.usable(os.MkdirAll(filepath.Join(s.dir, "attributes"), 0o700))
	s.usable(s.launch(func() error {
		s.args = []string{"--port", s.Addr(), "--access", S3AccessKey, "--secret", S3SecretKey, "--keep-alive", "--quiet", "posix"}
		if o.Sidecar {
			s.args = append(s.args, "--sidecar", filepath.Join(s.dir, "attributes"))
		}
		s.args = append(s.args, s.data())
		return nil
	}))
	return s
}

// answers succeeds if the server answers a request without a signature.
func (s *S3Server) answers() error {
	client := &http.Client{Timeout: pollTimeout}
	defer client.CloseIdleConnections()
	resp, err := client.Get(s.Endpoint() + "/bucket")
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		return fmt.Errorf("%s answers %s", s.Addr(), resp.Status)
	}
	return nil
}
