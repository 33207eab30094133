package kubelock

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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

// kubeconfig is a file of kubectl's.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User, Namespace string }
	}
	Clusters []struct {
		Name    string
		Cluster cluster
	}
	Users []struct {
		Name string
		User user
	}
}

type cluster struct {
	Server     string
	CA         string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
	Proxy      string `yaml:"proxy-url"`
}

type user struct {
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	Token     string
	TokenFile string `yaml:"tokenFile"`
	As        string
	Exec      *struct{ Command string }
	Provider  *struct{ Name string } `yaml:"auth-provider"`
}

// account is where a pod finds its service account.
var account = "/var/run/secrets/kubernetes.io/serviceaccount"

// findAccess returns the first access that there is.
func findAccess(file string) (*access, error) {
	if file = cmp.Or(file, os.Getenv("KUBECONFIG")); file != "" {
		return readConfigs(filepath.SplitList(file))
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if _, err := os.Stat(filepath.Join(account, "token")); err == nil && host != "" {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		namespace, err := os.ReadFile(filepath.Join(account, "namespace"))
		return &access{
			namespace: string(namespace),
			cluster:   cluster{Server: "https://" + host + ":" + cmp.Or(port, "443"), CA: filepath.Join(account, "ca.crt")},
			user:      user{TokenFile: filepath.Join(account, "token")},
		}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	a, err := readConfigs([]string{filepath.Join(home, ".kube", "config")})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("neither a kubeconfig nor a pod's service account; want one, or the parameter or variable that names it (kubeconfig, KUBECONFIG): %w", err)
	}
	return a, err
}

// readConfigs returns the current context of kubeconfigs. Of two things with one name it is the first, as for kubectl.
func readConfigs(files []string) (*access, error) {
	var all kubeconfig
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var k kubeconfig
		if yaml.Unmarshal(text, &k) != nil { // the error quotes the file, which has secrets
			return nil, fmt.Errorf("%s: want a kubeconfig in YAML or JSON", file)
		}
		k.resolve(filepath.Dir(file))
		all.Current = cmp.Or(all.Current, k.Current)
		all.Contexts, all.Clusters, all.Users = append(all.Contexts, k.Contexts...), append(all.Clusters, k.Clusters...), append(all.Users, k.Users...)
	}
	a, err := all.access()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
	}
	return a, err
}

// resolve makes the paths absolute: they are relative to their file's folder.
func (k *kubeconfig) resolve(dir string) {
	var paths []*string
	for i := range k.Clusters {
		paths = append(paths, &k.Clusters[i].Cluster.CA)
	}
	for i := range k.Users {
		u := &k.Users[i].User
		paths = append(paths, &u.Cert, &u.Key, &u.TokenFile)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// access returns the current context.
func (k *kubeconfig) access() (*access, error) {
	for _, c := range k.Contexts {
		if c.Name != k.Current {
			continue
		}
		a := &access{namespace: c.Context.Namespace}
		for i := len(k.Clusters) - 1; i >= 0; i-- {
			if k.Clusters[i].Name == c.Context.Cluster {
				a.cluster = k.Clusters[i].Cluster
			}
		}
		for i := len(k.Users) - 1; i >= 0; i-- {
			if k.Users[i].Name == c.Context.User {
				a.user = k.Users[i].User
			}
		}
		return a, a.check(c.Context.Cluster, c.Context.User)
	}
	return nil, fmt.Errorf("its current context %q is none of its contexts", k.Current)
}

// check refuses what would need other programs, or another user's name.
func (a *access) check(cluster, user string) error {
	const works = "want a token (for a service account: kubectl create token NAME), a file of one (tokenFile), or a client certificate; in a pod, its service account"
	switch u := a.user; {
	case a.cluster.Server == "":
		return fmt.Errorf("there is no server for cluster %q", cluster)
	case u.Exec != nil:
		return fmt.Errorf("user %q logs in by the program %s (exec), which is not run here: %s", user, u.Exec.Command, works)
	case u.Provider != nil:
		return fmt.Errorf("user %q logs in by the auth-provider %s, which there is not here: %s", user, u.Provider.Name, works)
	case u.As != "":
		return fmt.Errorf("user %q acts as another one (as: %s), which is not done here: %s", user, u.As, works)
	}
	return nil
}

// client makes what speaks to the API server. An empty namespace is that of the access.
func (a *access) client(namespace string) (*client, error) {
	c := &client{namespace: cmp.Or(namespace, a.namespace, "default")}
	var err, errToken error
	if c.server, err = url.Parse(a.cluster.Server); err != nil || c.server.Host == "" {
		return nil, errors.New("the cluster's server: want a URL such as https://host:6443")
	}
	u := a.user
	c.transport, err = netaddr.OpenFiles(a.files(), a.transports())
	c.token, errToken = netaddr.OpenFiles([]netaddr.File{{Name: "tokenFile", Path: u.TokenFile}}, func(text [][]byte) (string, error) {
		token := cmp.Or(strings.TrimSpace(string(text[0])), u.Token)
		if u.TokenFile != "" && token == "" {
			return "", fmt.Errorf("%s is empty", u.TokenFile)
		}
		return token, nil
	})
	return c, errors.Join(err, errToken)
}

// files are the files of TLS. One whose content stands in the kubeconfig is not read.
func (a *access) files() []netaddr.File {
	files := []netaddr.File{{Name: "certificate-authority", Path: a.cluster.CA}, {Name: "client-certificate", Path: a.user.Cert}, {Name: "client-key", Path: a.user.Key}}
	for i, data := range []string{a.cluster.CAData, a.user.CertData, a.user.KeyData} {
		if data != "" {
			files[i].Path = ""
		}
	}
	return files
}

// transports returns what makes a transport of the contents of the files, and drops the one before.
func (a *access) transports() func(text [][]byte) (*http.Transport, error) {
	var before *http.Transport
	return func(text [][]byte) (*http.Transport, error) {
		text = slices.Clone(text) // which is compared with the next one
		for i, data := range []string{a.cluster.CAData, a.user.CertData, a.user.KeyData} {
			if data == "" {
				continue
			}
			var err error
			if text[i], err = base64.StdEncoding.DecodeString(data); err != nil {
				return nil, errors.New("certificate-authority-data, client-certificate-data and client-key-data: want base64")
			}
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.cluster.ServerName, InsecureSkipVerify: a.cluster.Insecure}
		var errs [3]error
		if text[0] != nil {
			config.RootCAs, errs[0] = netaddr.Authorities("certificate-authority", text[0])
		}
		if text[1] != nil || text[2] != nil {
			config.Certificates = make([]tls.Certificate, 1)
			config.Certificates[0], errs[1] = netaddr.KeyPair("client-certificate and client-key", text[1], text[2])
		}
		proxy := http.ProxyFromEnvironment
		if a.cluster.Proxy != "" {
			var to *url.URL
			to, errs[2] = url.Parse(a.cluster.Proxy)
			proxy = http.ProxyURL(to)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
		if before != nil {
			before.CloseIdleConnections()
		}
		before = &http.Transport{
			TLSClientConfig: config, Proxy: proxy, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
			DisableCompression: true, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		}
		return before, nil
	}
}
