//go:build linux

package chaos

import (
	"net/url"
	"os"
	"time"

	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// kube lets workers reach an API server by a proxy, and from there on by TLS: the proxy reads what it loses. All cells have the same
// server, which takes long to start: those that break it run alone.
func kube(s *scene) {
	srv := testserver.SharedKube(s.T)
	namespace := srv.Namespace()
	s.server, s.etcd, s.proxy = srv, srv.Etcd(), faultproxy.New(s.T, srv.Plain())
	s.direct, s.text = srv.URL(namespace), "/leases/"+hot
	s.url = "kube:///" + namespace + "?kubeconfig=" + url.QueryEscape(srv.Kubeconfig("http://"+s.proxy.Addr(), "admin"))
	s.do = func(...string) { srv.Compact() }
}

var (
	bounceEtcd  = fault{"etcd killed and restarted at once", 0, func(s *scene) func() { s.etcd.Kill(); return s.etcd.Start }}
	compactEtcd = fault{"etcd compacted", 0.2, func(s *scene) func() { s.do(); return nothing }}
)

// s3Account makes AWS's chain of credentials find those of the gateways, here and in the workers.
func s3Account() {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": testserver.S3AccessKey, "AWS_SECRET_ACCESS_KEY": testserver.S3SecretKey, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_REGION": "us-east-1",
	} {
		os.Setenv(name, value)
	}
}

func s3(s *scene) {
	srv := testserver.S3(s.T, testserver.S3Options{})
	at := func(addr string) string { return "s3://bucket/locks?endpoint=" + url.QueryEscape("http://"+addr) }
	s.server, s.proxy = srv, faultproxy.New(s.T, srv.Addr())
	s.url, s.direct, s.text = at(s.proxy.Addr()), at(srv.Addr()), "/locks/"+hot
}

// recordCells returns the cells of stores that have no locks. The hold of a process that died ends for those who saw its record
// for a TTL. A client that has just come, or polls, sees it later.
func recordCells() []cell {
	kube := deployment{name: "kube", title: "Kubernetes", ttl: 2 * time.Second, more: 2 * time.Second, start: kube}
	bucket := deployment{name: "s3", title: "S3 (versitygw)", ttl: time.Second, more: 4 * time.Second, start: s3}
	alone := kube
	alone.alone = true
	cells := []cell{
		{kube, killClient, "kill-client", safe},
		{kube, pauseClient, "pause-client", withFences},
		{alone, killServer, "kill-server", safe},
		{alone, pauseServer, "pause-server", safe},
		{alone, bounceEtcd, "bounce-etcd", safe},
		{kube, compactEtcd, "compact-etcd", safe},
		{kube, cutConnections, "cut", safe},
		{kube, blackHole, "black-hole", safe},
		{kube, delay, "delay", safe},
		{kube, loseRequests, "lose-requests", safe},
		{kube, loseAnswers, "lose-answers", safe},
	}
	return append(cells, networkCells(bucket)...)
}
