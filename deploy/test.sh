#!/bin/sh
# test.sh [ARGUMENT...]: runs go test in a network namespace with no way out. Without arguments: everything, once.
#
# No test can reach a real address there, even if the product has a hole: there is a loopback and one device,
# dummy0, for the addresses of pretended servers, and no route. Everything is downloaded and compiled outside first.
# It needs root, for the namespace and for the tests that start containers.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # su leaves them out
umask 022 # whatever root has: accounts of the product read what tests make
cd "$(dirname "$0")/.."

if [ "${1:-}" = --inside ]; then
	shift
	# Names of network namespaces are files here: two runs at once must not share them, and none may be left behind.
	mkdir -p /run/netns
	mount -t tmpfs tmpfs /run/netns
	ip link set lo up
	# A kernel without the dummy driver has bridges; an empty one takes addresses just as well.
	ip link add dummy0 type dummy 2>/dev/null || ip link add dummy0 type bridge
	ip link set dummy0 up
	GOFLAGS="$(go env GOFLAGS) -mod=readonly"
	export GOFLAGS GOPROXY=off
	exec go test "$@"
fi

[ "$(id -u)" = 0 ] || {
	echo "test.sh: error: the tests make network namespaces and start containers, so they have to run as root" >&2
	echo "test.sh: hint: sudo make test" >&2
	exit 1
}
[ $# -gt 0 ] || set -- -count=1 -timeout 30m ./...

echo "test: downloading modules and compiling"
go mod download
go -C test/sdk build -o /dev/null . # test/clients builds it again, where nothing can be downloaded
# Compiles every package and its tests, and links none: go test does that again anyway.
go list -deps -test -export -f '{{with .Error}}{{.}}{{end}}' ./... >/dev/null

# unshare, not "ip netns exec": the latter hides the cgroup mounts, and containers do not start without them.
echo "test: go test $* (in a network namespace of its own)"
exec unshare --net --mount --propagation private "$PWD/deploy/test.sh" --inside "$@"
