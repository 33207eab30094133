package netaddr

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Credentials returns the user and the password of one login. It is called for each login, from several goroutines, since
// passwords change: of accounts in a cloud, or by a rotation. An error lets that login fail.
type Credentials func(ctx context.Context) (user, password string, err error)

// Login reads the user and the password of a URL. The password may stand in the file of the parameter password_file
// instead, which is read again at each login; one line feed at its end is no part of it.
func Login(u *url.URL, p *driver.Params) (Credentials, error) {
	path := p.String("password_file", "")
	user := u.User.Username()
	password, given := u.User.Password()
	if path == "" {
		return func(context.Context) (string, string, error) { return user, password, nil }, nil
	}
	if given {
		return nil, fmt.Errorf("%w: a password and the parameter password_file: want one of them", driver.ErrInvalid)
	}
	read := FileCredentials(user, path)
	if _, _, err := read(context.Background()); err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return read, nil
}

// FileCredentials returns Credentials whose password is read from a file.
func FileCredentials(user, path string) Credentials {
	return func(context.Context) (string, string, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", "", fmt.Errorf("parameter password_file: want a file with the password: %w", err)
		}
		password := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
		if password == "" {
			return "", "", fmt.Errorf("parameter password_file: %s is empty", path)
		}
		return user, password, nil
	}
}
