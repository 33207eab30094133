package testserver

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// account is the user for servers that refuse to run as root.
type account struct{ uid, gid int }

// unprivileged returns an account for servers that refuse to run as root; nil if this process
// isn't root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.Atoi(u.Gid)
		return &account{uid, gid}, err
	}
	return nil, fmt.Errorf("this is root, and there is no user postgres and no user nobody to run the server as")
}

// give makes the account the owner of a folder and of all that is in it.
func (a *account) give(dir string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}
