#!/usr/bin/env bash
# build.sh VERSION [FOLDER] builds a deb and an rpm of the command for this kind of machine, or for GOARCH,
# into FOLDER (dist): the command and what it becomes for etcd and S3, manual pages from its help, completions for bash, zsh and fish, and the systemd
# unit of distlock serve. It needs Go and gzip, and gets nfpm from the Go module proxy.
set -euo pipefail
# 2.45 is the last version of nfpm whose modules were all to be had.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "build.sh: got $# arguments; want a version such as 0.1.0, and a folder or none" >&2
	exit 64
fi
version=${1#v}
case $version in
[0-9]*) ;;
*) echo "build.sh: version \"$1\"; want one such as 0.1.0" >&2; exit 64 ;;
esac
mkdir -p "${2:-dist}"
folder=$(cd "${2:-dist}" && pwd)
cd "$(dirname "$0")"
arch=${GOARCH:-$(go env GOARCH)}
config=$PWD/nfpm.yaml unit=$PWD/../systemd/distlock.service license=$PWD/../../LICENSE reload=$PWD/reload.sh
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

cd ../../cmd/distlock
GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/distlock/distlock/cmd/distlock/internal/cli.release=v$version" -o "$stage/" . ./distlock-all
mkdir "$stage/man"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s) # of the manual pages and the packages
export SOURCE_DATE_EPOCH
GOOS='' GOARCH='' go run ./internal/man "$stage/man"
for shell in bash zsh fish; do
	GOOS='' GOARCH='' go run . completion $shell >"$stage/distlock.$shell"
done
gzip -9n "$stage"/man/*.1
{
	echo '# Write the URL of the backend to /etc/distlock.url, for root only: redis://:password@localhost:6379/0'
	sed 's|/usr/local/bin/|/usr/bin/|; 1,/^\[Unit\]/{ /^#/d }' "$unit"
} >"$stage/distlock.service"
cp "$license" "$stage/license"
cp "$reload" "$stage/reload.sh"
cat >"$stage/copyright" <<-'END'
	Copyright: the distlock authors
	License: Apache-2.0, see /usr/share/common-licenses/Apache-2.0
END

cd "$stage"
for format in deb rpm; do
	ARCH=$arch VERSION=$version GOOS='' GOARCH='' GOWORK=off CGO_ENABLED=0 \
		go run "$nfpm" package --config "$config" --packager $format --target "$folder"
done
