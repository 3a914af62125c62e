#!/bin/sh
# setup.sh STEP...: gets a Debian machine ready for sallyport. Run it as root; a second run changes nothing.
#
#   packages     Debian packages that sandboxes need at run time
#   stack        containerd, runc and nerdctl: those on PATH if they are new enough, else pinned ones, built from source
#   gvisor       runsc, likewise
#   image [NAME] the sandbox image's archive (image/packages), or another one (image/NAME.packages)
#   users        the system users of gateway and broker, and the group of reviewers
#   lint         golangci-lint and shellcheck
#   clients      the clients that tests start on the host
#   all          packages stack gvisor image users
#
# What is built is kept in /var/cache/sallyport and linked to from /var/lib/sallyport.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # su leaves them out
umask 022 # whatever root has: others are to read what is made

here=$(cd "$(dirname "$0")" && pwd)
cache=/var/cache/sallyport
state=/var/lib/sallyport
bin=$state/tools/bin

say() { echo "setup: $*"; }
die() {
	echo "setup: error: $1" >&2
	shift
	for hint in "$@"; do echo "setup: hint: $hint" >&2; done
	exit 1
}
now() { date +%s; }

# --- the machine ------------------------------------------------------------------------------------------------

check_machine() {
	[ "$(id -u)" = 0 ] || die 'setup installs packages and makes users, so it has to run as root' "sudo make setup"
	for tool in apt-get dpkg-query; do
		command -v "$tool" >/dev/null || die "$tool is missing, so this is no Debian" 'use a machine with Debian 12 or newer'
	done
	case $(uname -m) in
	x86_64 | aarch64) ;;
	*) die "no support for $(uname -m)" 'use an x86_64 or aarch64 machine' ;;
	esac
	kernel=$(uname -r | sed 's/[^0-9.].*//')
	at_least "$kernel" "$(floor kernel)" || die "kernel $kernel is older than $(floor kernel)" 'boot a newer kernel'
	mkdir -p "$cache/tools" "$cache/images" "$bin" "$state/images"
}

# Two setups at once would build everything twice, so the second one waits.
take_lock() {
	exec 9>"$state/setup.lock"
	flock -n 9 || {
		say 'another setup is running; waiting for it'
		flock 9
	}
	rm -rf "$cache"/tools/.[!.]* "$cache"/images/.[!.]* # half-done work of a run that was killed
}

# --- versions ---------------------------------------------------------------------------------------------------

floor() { awk -v name="$1" '$1 == name { print $2 }' "$here/floors.txt"; }
at_least() { dpkg --compare-versions "$1" ge "$2"; }

# version TOOL PATH: the tool's own word for its version, as digits and dots.
version() {
	case $1 in
	containerd) "$2" --version | sed -n '1s/.* v\([0-9][0-9.]*\).*/\1/p' ;;
	*) "$2" --version | sed -n '1s/.*[ v-]\([0-9][0-9.]*\).*/\1/p' ;;
	esac
}

# on_path TOOL...: they are all on PATH, not ours, and the first one is new enough.
on_path() {
	for tool in "$@"; do
		found=$(command -v "$tool") || return 1
		case $(readlink -f "$found") in "$cache"/*) return 1 ;; esac
	done
	found=$(command -v "$1")
	have=$(version "$1" "$found" 2>/dev/null) || return 1
	if [ -z "$have" ] || ! at_least "$have" "$(floor "$1")"; then
		say "$1 ${have:-of unknown version} at $found is older than $(floor "$1"), so it is not used"
		return 1
	fi
	say "$1 $have at $found is new enough"
	for tool in "$@"; do rm -f "$bin/$tool"; done
}

# --- Debian packages --------------------------------------------------------------------------------------------

# need FOR: installs the packages of that kind (see the file packages) that are missing.
need() {
	missing=
	# shellcheck disable=SC2013 # words are what it prints
	for package in $(awk -v kind="$1" '$1 == kind { print $2 }' "$here/packages"); do
		case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || :) in
		installed) ;;
		*) missing="$missing $package" ;;
		esac
	done
	[ -n "$missing" ] || return 0
	say "installing Debian packages ($1):$missing"
	update_lists
	# shellcheck disable=SC2086 # a list of words
	quietly apt-get -o DPkg::Lock::Timeout=900 install -y --no-install-recommends $missing ||
		die "apt-get could not install:$missing" "apt-get install$missing"
}

update_lists() {
	[ -z "${lists_updated:-}" ] || return 0
	quietly apt-get -o DPkg::Lock::Timeout=900 update || die 'apt-get update failed' 'check the machine'\''s apt sources and proxy'
	lists_updated=yes
}

# quietly COMMAND...: shows the output only if the command fails.
quietly() {
	log=$(mktemp)
	if DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null; then
		rm -f "$log"
		return 0
	fi
	tail -n 40 "$log" >&2
	rm -f "$log"
	return 1
}

# --- tools built from source ------------------------------------------------------------------------------------

find_go() {
	command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
	command -v go >/dev/null || die 'go is missing' 'install Go 1.26 or newer and put it on PATH'
	have=$(go env GOVERSION | sed 's/^go//; s/[^0-9.].*//')
	at_least "$have" 1.26 || die "go $have is older than 1.26" 'install Go 1.26 or newer and put it on PATH'
}

# pinned DIR MODULE: the version of a module in a tool's go.mod.
pinned() { awk -v module="$2" '$1 == module { print $2; exit } $1 == "require" && $2 == module { print $3; exit }' "$here/tools/$1/go.mod"; }

digest() { sha256sum | cut -c1-16; }

# sources TOOL: what goes into a tool.
sources() { find "$here/tools/$1" -type f ! -name '*_test.go' -print0 | LC_ALL=C sort -z | xargs -0 cat; }

# build TOOL CGO PACKAGES FLAGS...: builds into the cache, once for each content of go.mod, go.sum, Go and flags, and links to it.
build() {
	tool=$1 cgo=$2 packages=$3
	shift 3
	find_go
	src=$here/tools/$tool
	key=$( (sources "$tool"; go env GOVERSION GOARCH; echo "$cgo $packages $*") | digest)
	dir=$cache/tools/$tool-$key
	if [ ! -d "$dir" ]; then
		say "building $tool from source (some minutes the first time)"
		start=$(now)
		work=$(mktemp -d "$cache/tools/.$tool.XXXXXX")
		chmod 0755 "$work"
		mkdir "$work/bin"
		# shellcheck disable=SC2086 # a list of packages
		(cd "$src" && quietly env CGO_ENABLED="$cgo" GOFLAGS='-buildvcs=false -mod=readonly' GOWORK=off \
			go build -trimpath "$@" -o "$work/bin/" $packages) ||
			die "building $tool failed" "cd $src && go build $packages"
		mv -T "$work" "$dir"
		say "built $tool in $(($(now) - start)) s"
	fi
	link "$dir"/bin/*
}

# link FILE...: makes each file known under its name in the tools directory, without a moment at which it is missing.
link() {
	for file in "$@"; do
		to=$bin/${file##*/}
		[ "$(readlink "$to" 2>/dev/null)" != "$file" ] || continue
		ln -s "$file" "$to.new.$$"
		mv -fT "$to.new.$$" "$to"
	done
}

step_stack() {
	on_path containerd containerd-shim-runc-v2 || {
		v=$(pinned containerd github.com/containerd/containerd/v2)
		cmd=github.com/containerd/containerd/v2/cmd
		build containerd 0 "$cmd/containerd $cmd/containerd-shim-runc-v2 $cmd/ctr" \
			-ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$v"
	}
	on_path runc || {
		need build
		build runc 1 github.com/opencontainers/runc -tags seccomp -ldflags '-s -w'
	}
	on_path nerdctl || {
		v=$(pinned nerdctl github.com/containerd/nerdctl/v2)
		build nerdctl 0 github.com/containerd/nerdctl/v2/cmd/nerdctl \
			-ldflags "-s -w -X github.com/containerd/nerdctl/v2/pkg/version.Version=$v"
	}
}

# runsc re-executes itself in an empty root, so it must not need a dynamic loader.
step_gvisor() {
	on_path runsc || {
		day=$(pinned gvisor gvisor.dev/gvisor | sed 's/.*-\([0-9]\{8\}\)[0-9]*-.*/\1/')
		build gvisor 0 gvisor.dev/gvisor/runsc \
			-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=release-$day"
	}
}

step_lint() {
	need lint
	build lint 0 github.com/golangci/golangci-lint/v2/cmd/golangci-lint -ldflags '-s -w'
}

# --- image ------------------------------------------------------------------------------------------------------

# step_image NAME LIST: a root file system of Debian packages, packed as an image archive.
step_image() {
	name=$1 list=$2
	[ -f "$list" ] || die "$list: no such list of packages"
	build image 0 . -ldflags '-s -w'
	# shellcheck source=/dev/null
	. /etc/os-release
	key=$( (cat "$list" "$here/image/build.sh" "$here/image/customize.sh"; sources image; echo "${VERSION_CODENAME:-} $name") | digest)
	archive=$cache/images/$name-$key.tar
	if [ ! -f "$archive" ]; then
		need image
		update_lists
		say "building the image sallyport/$name (2 to 4 minutes)"
		start=$(now)
		work=$(mktemp -d "$cache/images/.$name.XXXXXX")
		quietly "$here/image/build.sh" "$list" "$work/rootfs.tar" ||
			die "making the root file system of sallyport/$name failed" "$here/image/build.sh $list /tmp/rootfs.tar"
		quietly "$bin/image" -name "sallyport/$name:latest" -rootfs "$work/rootfs.tar" -o "$work/image.tar" \
			-user 1000:1000 -workdir /workspace -env LANG=C.UTF-8 \
			-env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/bash ||
			die "packing sallyport/$name failed"
		mv "$work/image.tar" "$archive"
		rm -rf "$work"
		say "built the image in $(($(now) - start)) s, $(du -m "$archive" | cut -f1) MB"
	fi
	ln -s "$archive" "$state/images/.$name.$$"
	mv -fT "$state/images/.$name.$$" "$state/images/$name.tar"
}

# --- users ------------------------------------------------------------------------------------------------------

# The group is what lets gateway and broker reach the sockets that they share; neither can read the other's files.
step_users() {
	getent group sallyport >/dev/null || groupadd --system sallyport
	# Who is in this one reviews: it may read the log, and write nothing.
	getent group sallyport-audit >/dev/null || groupadd --system sallyport-audit
	for user in sallyport-gateway sallyport-broker sallyport-shipper; do
		if ! getent passwd "$user" >/dev/null; then
			say "adding the system user $user"
			useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$user"
		fi
		id -nG "$user" | tr ' ' '\n' | grep -qx sallyport || usermod --append --groups sallyport "$user"
	done
}

# --- clients of the tests ---------------------------------------------------------------------------------------

step_clients() {
	need test
	unpack_postgresql
	install_js
}

# The libraries of the lock file, and no others: npm checks their digests, and none of their scripts runs.
install_js() {
	command -v npm >/dev/null || need js
	src=$here/tools/js
	dir=$cache/tools/js-$(cat "$src/package.json" "$src/package-lock.json" | digest)
	if [ ! -d "$dir" ]; then
		say 'installing the JavaScript libraries of the tests'
		start=$(now)
		work=$(mktemp -d "$cache/tools/.js.XXXXXX")
		cp "$src/package.json" "$src/package-lock.json" "$work"
		(cd "$work" && quietly npm ci --ignore-scripts --no-audit --no-fund --cache "$work/.npm") ||
			die 'npm could not install the libraries' "cd $src && npm ci --ignore-scripts --dry-run"
		rm -rf "$work/.npm"
		chmod 0755 "$work"
		mv -T "$work" "$dir"
		say "installed them in $(($(now) - start)) s, $(du -sm "$dir" | cut -f1) MB"
	fi
	[ "$(readlink "$state/js" 2>/dev/null)" != "$dir" ] || return 0
	ln -s "$dir" "$state/.js.$$"
	mv -fT "$state/.js.$$" "$state/js"
}

# The tests' PostgreSQL server is unpacked, not installed: a package would start it.
unpack_postgresql() {
	! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || return 0
	[ ! -d "$cache/postgresql" ] || return 0
	say 'unpacking a PostgreSQL server for the tests'
	work=$(mktemp -d "$cache/tools/.postgresql.XXXXXX")
	update_lists
	version=$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
	chown _apt "$work" 2>/dev/null || :
	(cd "$work" && quietly apt-get download "$version") || die "apt-get could not download $version" "apt-get download $version"
	dpkg-deb -x "$work"/*.deb "$work/root" || die "unpacking $version failed"
	chmod 755 "$work/root"
	mv "$work/root" "$cache/postgresql"
	rm -rf "$work"
}

# --- main -------------------------------------------------------------------------------------------------------

usage() { sed -n '2,/^set/{ /^#/ s/^# \{0,1\}//p; }' "$0"; }

[ $# -gt 0 ] || {
	usage >&2
	exit 2
}
case $1 in -h | --help | help)
	usage
	exit 0
	;;
esac
check_machine
take_lock
began=$(now)
while [ $# -gt 0 ]; do
	case $1 in
	packages) need run ;;
	clients) step_clients ;;
	stack) step_stack ;;
	gvisor) step_gvisor ;;
	image)
		if [ -f "$here/image/${2:-}.packages" ]; then
			step_image "$2" "$here/image/$2.packages"
			shift
		else
			step_image sandbox "$here/image/packages"
		fi
		;;
	users) step_users ;;
	lint) step_lint ;;
	all)
		shift
		set -- all packages stack gvisor image users "$@"
		;;
	*) die "unknown step \"$1\"" "$0 --help" ;;
	esac
	shift
done
say "ready ($(($(now) - began)) s)"
