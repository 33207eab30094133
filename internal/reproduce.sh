#!/usr/bin/env bash
# reproduce.sh [FOLDER] builds distlock and distlock-all twice, of two copies of the last commit in different folders, the
# second with an empty cache, and fails unless both have the same bytes. It leaves them in FOLDER, if that is given. GOOS and
# GOARCH choose the system.
#
#   internal/reproduce.sh dist
#
# The flags are those of every release: no paths (-trimpath), no C, and the commit, its time and its tag from the clone.
set -euo pipefail
folder=${1+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
for copy in one/a two/another/folder; do
	git clone -q "$PWD" "$temp/$copy"
	(
		cd "$temp/$copy/cmd/distlock"
		# The name of a folder does not matter to the cache, so that the second build would only find the first.
		if [ "$copy" != one/a ]; then export GOCACHE=$temp/cache; fi
		CGO_ENABLED=0 go build -trimpath -buildvcs=true -ldflags '-s -w -buildid=' -o "$temp/$copy/dist/" . ./distlock-all
	)
done
sums() { (cd "$temp/$1/dist" && sha256sum *); }
if [ "$(sums one/a)" != "$(sums two/another/folder)" ]; then
	echo "reproduce: two builds differ:" >&2
	{ sums one/a && sums two/another/folder; } >&2
	exit 1
fi
sums one/a
echo "twice, with $(go env GOVERSION) for $(go env GOOS)/$(go env GOARCH)"
if [ -n "$folder" ]; then mkdir -p "$folder" && cp "$temp"/one/a/dist/* "$folder"; fi
