#!/usr/bin/env bash
# reproduce.sh [FILE] builds the command twice, of two copies of the last commit in different folders, the second with an
# empty cache, and fails unless both have the same bytes. It leaves one as FILE, if that is given. GOOS and GOARCH choose
# the system.
#
#   internal/reproduce.sh dist/distlock
#
# The flags are those of every release: no paths (-trimpath), no C, and the commit, its time and its tag from the clone.
set -euo pipefail
file=${1+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
for copy in one/a two/another/folder; do
	git clone -q "$PWD" "$temp/$copy"
	(
		cd "$temp/$copy/cmd/distlock"
		# The name of a folder does not matter to the cache, so that the second build would only find the first.
		if [ "$copy" != one/a ]; then export GOCACHE=$temp/cache; fi
		CGO_ENABLED=0 go build -trimpath -buildvcs=true -ldflags '-s -w -buildid=' -o "$temp/$copy/distlock" .
	)
done
sum() { sha256sum <"$temp/$1/distlock" | cut -d' ' -f1; }
if [ "$(sum one/a)" != "$(sum two/another/folder)" ]; then
	echo "reproduce: two builds differ: $(sum one/a) and $(sum two/another/folder)" >&2
	exit 1
fi
echo "sha256 $(sum one/a), twice, with $(go env GOVERSION) for $(go env GOOS)/$(go env GOARCH)"
if [ -n "$file" ]; then mkdir -p "$(dirname "$file")" && cp "$temp/one/a/distlock" "$file"; fi
