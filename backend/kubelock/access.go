package kubelock

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	"go.yaml.in/yaml/v3"
)

// access is how a cluster is reached: a context of a kubeconfig, or a pod's service account.
type access struct {
	namespace string
	cluster   cluster
	user      user
}

type cluster struct {
	Server     string
	CA         string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
}

type user struct {
	Cert       string `yaml:"client-certificate"`
	CertData   string `yaml:"client-certificate-data"`
	Key        string `yaml:"client-key"`
	KeyData    string `yaml:"client-key-data"`
	Token      string
	TokenFile  string `yaml:"tokenFile"`
	Extensions any
	Others     map[string]any `yaml:",inline"`
}

// account is where a pod finds its service account.
var account = "/var/run/secrets/kubernetes.io/serviceaccount"

// findAccess returns the first access that there is.
func findAccess(file string) (*access, error) {
	if file = cmp.Or(file, os.Getenv("KUBECONFIG")); file != "" {
		return readKubeconfig(file)
	}
	host, port, token := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"), filepath.Join(account, "token")
	if _, err := os.Stat(token); err == nil && host != "" {
		namespace, err := os.ReadFile(filepath.Join(account, "namespace"))
		return &access{
			namespace: string(namespace), user: user{TokenFile: token},
			cluster: cluster{Server: "https://" + net.JoinHostPort(host, cmp.Or(port, "443")), CA: filepath.Join(account, "ca.crt")},
		}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	a, err := readKubeconfig(filepath.Join(home, ".kube", "config"))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("neither a kubeconfig nor a pod's service account; want one, or the parameter kubeconfig or the variable KUBECONFIG that names it: %w", err)
	}
	return a, err
}

// entry is an element of each list of a kubeconfig, which has one of the fields.
type entry struct {
	Name    string
	Context struct{ Cluster, User, Namespace string }
	Cluster cluster
	User    user
}

// readKubeconfig returns the current context of a kubeconfig.
func readKubeconfig(file string) (*access, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var k struct {
		Current                   string `yaml:"current-context"`
		Contexts, Clusters, Users []entry
	}
	if yaml.Unmarshal(text, &k) != nil { // the error quotes the file, which has secrets
		return nil, fmt.Errorf("%s: want a kubeconfig in YAML or JSON", file)
	}
	named := func(list []entry, name string) (e entry, ok bool) {
		for _, e := range list {
			if e.Name == name {
				return e, true
			}
		}
		return e, false
	}
	in, ok := named(k.Contexts, k.Current)
	if !ok {
		return nil, fmt.Errorf("%s: its current context %q is none of its contexts", file, k.Current)
	}
	c, _ := named(k.Clusters, in.Context.Cluster)
	u, _ := named(k.Users, in.Context.User)
	for what, value := range u.User.Others {
		if value == nil { // a template that leaves it out
			continue
		}
		return nil, fmt.Errorf("%s: user %q has %s, which is not done here: want a token (of a service account: kubectl create token NAME), "+
			"a file of one (tokenFile), or a client certificate; in a pod, its service account needs no kubeconfig", file, u.Name, what)
	}
	for _, path := range []*string{&c.Cluster.CA, &u.User.Cert, &u.User.Key, &u.User.TokenFile} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	return &access{in.Context.Namespace, c.Cluster, u.User}, nil
}

// newClient makes what speaks to the API server of a kubeconfig, or of the first access that there is, whose namespace an empty one is.
func newClient(kubeconfig, namespace string) (*client, error) {
	a, err := findAccess(kubeconfig)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(a.cluster.Server)
	if err != nil || server.Host == "" {
		return nil, errors.New("the cluster's server: want a URL such as https://host:6443")
	}
	c := &client{server: server, namespace: cmp.Or(namespace, a.namespace, "default"), token: a.user.token}
	files := []netaddr.File{{Name: "certificate-authority", Path: a.cluster.CA}, {Name: "client-certificate", Path: a.user.Cert}, {Name: "client-key", Path: a.user.Key}}
	for i, data := range []string{a.cluster.CAData, a.user.CertData, a.user.KeyData} {
		if data == "" {
			continue
		}
		files[i].Path = ""
		if files[i].Text, err = base64.StdEncoding.DecodeString(data); err != nil {
			return nil, fmt.Errorf("%s-data: want base64", files[i].Name)
		}
	}
	c.transport, err = netaddr.OpenFiles(files, a.transport)
	_, errToken := c.token()
	return c, errors.Join(err, errToken)
}

// token returns the token as it is now; "" for a user without one.
func (u user) token() (string, error) {
	if u.TokenFile == "" {
		return u.Token, nil
	}
	text, err := os.ReadFile(u.TokenFile)
	token := strings.TrimSpace(string(text))
	if err == nil && token == "" {
		err = fmt.Errorf("tokenFile: %s is empty", u.TokenFile)
	}
	return token, err
}

// transport returns one with the texts of the files. The connections of the one before end when they have been idle.
func (a *access) transport(text [][]byte) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.cluster.ServerName, InsecureSkipVerify: a.cluster.Insecure}
	var err, errPair error
	if text[0] != nil {
		config.RootCAs, err = netaddr.Authorities("certificate-authority", text[0])
	}
	if text[1] != nil || text[2] != nil {
		config.Certificates = make([]tls.Certificate, 1)
		config.Certificates[0], errPair = netaddr.KeyPair("client-certificate and client-key", text[1], text[2])
	}
	return &http.Transport{
		TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
	}, errors.Join(err, errPair)
}
