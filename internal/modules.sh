#!/usr/bin/env bash
# modules.sh works on all modules of this repository, which go.work joins.
#
#   modules.sh tidy             writes what each go.mod and go.sum must say
#   modules.sh check            fails if one of them says something else, or if a module for users
#                               does not compile with the Go and the versions that its go.mod names
#   modules.sh test             runs the conformance suite of each backend with these versions
#   modules.sh use DIR          lets the user's module in DIR take these folders for the modules
#   modules.sh release VERSION  tags all modules for a release, with what the changelog lists as
#                               unreleased as the notes; only with DRY_RUN=no does it do so
#
# A module requires the others by the version of the last release, v0.0.0 before the first. The
# workspace replaces these versions by the folders; no go.mod does, since go install refuses
# a command whose go.mod has replacements.
set -euo pipefail
cd "$(dirname "$0")/.."
main=github.com/distlock/distlock

# folders prints the folders of the modules, the root as ".".
folders() { sed -n 's/^\t\.\/\(.*\)$/\1/p; s/^\t\.$/./p' go.work; }

path() { if [ "$1" = . ]; then echo $main; else echo "$main/$1"; fi; }

# tidied writes into folder $2 the go.mod and go.sum that "go mod tidy" makes for module $1.
tidied() {
	local other from=$1 to=$2
	cp "$from/go.mod" "$to/go.mod"
	if [ -e "$from/go.sum" ]; then cp "$from/go.sum" "$to/go.sum"; fi
	for other in $(folders); do
		go mod edit -replace="$(path "$other")=$PWD/$other" "$to/go.mod"
	done
	(cd "$from" && GOWORK=off go mod tidy -modfile="$to/go.mod")
	cp "$to/go.mod" "$to/replaced.mod"
	if [ -e "$to/go.sum" ]; then cp "$to/go.sum" "$to/replaced.sum"; fi
	for other in $(folders); do
		go mod edit -dropreplace="$(path "$other")" "$to/go.mod"
	done
}

each() {
	local module
	temp=$(mktemp -d)
	trap 'rm -rf "$temp"' EXIT
	for module in $(folders); do
		rm -f "$temp"/*
		tidied "$module" "$temp"
		"$1" "$module" "$temp"
	done
}

replace() {
	local file
	for file in go.mod go.sum; do
		if [ -e "$2/$file" ]; then cp "$2/$file" "$1/$file"; else rm -f "$1/$file"; fi
	done
}

compare() {
	local file
	for file in go.mod go.sum; do
		if [ -e "$1/$file" ] || [ -e "$2/$file" ]; then
			diff -uN "$1/$file" "$2/$file" || { echo "$1/$file is not tidy: run make tidy" >&2; exit 1; }
		fi
	done
	if released | grep -qx -e "$1"; then
		(
			cd "$1"
			local oldest toolchain=local
			oldest=$(sed -n 's/^go //p' go.mod)
			if [ "${oldest%.*}" != "$(go env GOVERSION | sed -E 's/^go([0-9]+\.[0-9]+).*/\1/')" ]; then toolchain=go$oldest; fi
			export GOWORK=off GOTOOLCHAIN=$toolchain
			# What only tests import may need a later Go.
			go list -modfile="$2/replaced.mod" -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v /internal/testkit/ | xargs go build -modfile="$2/replaced.mod"
		)
	fi
}

# conform runs a backend's conformance suite with the versions that its go.mod names.
conform() {
	case $1 in
	backend/all | backend/redislock/*) ;;
	backend/*) (cd "$1" && GOWORK=off go test -modfile="$2/replaced.mod" -vet=off -timeout 10m -run '^TestConformance' .) ;;
	esac
}

# released prints the modules that users may require.
released() { folders | grep -v -e '^bench$' -e '^examples$' -e '^interop\b' -e '^proof$' -e '^internal/'; }

# use replaces the modules in a user's go.mod, as long as none can be downloaded.
use() {
	local module
	[ -f "$1/go.mod" ] || { echo "use: no go.mod in \"$1\"; want the folder of your program: make use DIR=/path/to/app" >&2; exit 64; }
	for module in $(released); do
		go mod edit -replace="$(path "$module")=$PWD/$module" "$1/go.mod"
	done
	echo "$1/go.mod takes distlock from $PWD; now, in that folder: go mod tidy"
}

release() {
	local version=$1 module tag
	[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || { echo "release: want a version such as v0.1.0, not \"$version\"" >&2; exit 64; }
	[[ $version =~ ^v[01]\. ]] || { echo "release: $version needs module paths that end in /${version%%.*}" >&2; exit 64; }
	[ -z "$(git status --porcelain)" ] || { echo "release: there are uncommitted changes" >&2; exit 1; }
	for module in $(released); do
		tag=$version
		if [ "$module" != . ]; then tag=$module/$version; fi
		if git rev-parse -q --verify "refs/tags/$tag" >/dev/null; then echo "release: there is a tag $tag already" >&2; exit 1; fi
		tags+=("$tag")
	done
	local notes
	notes=$(sed '1,/^## Unreleased$/d; /^## /,$d' CHANGELOG.md)
	[ -n "$notes" ] || { echo "release: CHANGELOG.md has nothing under \"## Unreleased\"" >&2; exit 1; }
	if [ "${DRY_RUN:-yes}" != no ]; then
		echo "would set the version of distlock's modules to $version in go.work and in each go.mod, commit, and tag the commit"
		printf '  %s\n' "${tags[@]}"
		echo "the notes, from CHANGELOG.md, are $(wc -l <<<"$notes") lines: git tag -n999 -l $version shows them then"
		echo "to do it: make release VERSION=$version DRY_RUN=no"
		echo "before: make check, govulncheck, internal/reproduce.sh dist; after: the list of modules (CONTRIBUTING.md, Releasing)."
		echo "CONTRIBUTING.md, Releasing, has the whole list"
		return
	fi
	for module in $(folders); do
		sed -i -E "s#^((require )?\s*$main(/[a-z0-9/]+)?) v\S+#\1 $version#" "$module/go.mod"
	done
	sed -i -E "s#^(\s*$main(/[a-z0-9/]+)?) v\S+ =>#\1 $version =>#" go.work
	go list work >/dev/null
	sed -i "s/^## Unreleased\$/&\n\n## $version ($(date -u +%F))/" CHANGELOG.md
	git commit -q -a -m "release $version"
	git tag -a "$version" --cleanup=verbatim -m "distlock $version"$'\n'"$notes"
	for tag in "${tags[@]:1}"; do git tag -a "$tag" -m "distlock $version"; done
	echo "committed and tagged; for the files of the release: internal/reproduce.sh dist, and the list of modules (CONTRIBUTING.md, Releasing)"
	echo "to publish: git push --atomic origin HEAD ${tags[*]}"
}

# sums fails if go.work.sum lacks what go doc and others would write into it, in a clone that nobody has changed yet.
sums() {
	local before
	before=$(cat go.work.sum)
	go list -m all >/dev/null
	[ "$before" = "$(cat go.work.sum)" ] || { echo "go.work.sum was not complete: commit it as it is now" >&2; exit 1; }
}

tags=()
case ${1-} in
tidy) each replace; go list -m all >/dev/null ;;
check) each compare; sums ;;
test) each conform ;;
use) use "${2-}" ;;
release) release "${2-}" ;;
*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 64 ;;
esac
