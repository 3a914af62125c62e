#!/bin/sh
# build.sh LIST OUT: makes the root file system of a sandbox image out of the Debian packages in LIST.
#
# It uses the machine's own mirrors, proxy and certificates: whatever apt-get here can reach, this can. The machine's
# apt settings are used while building and are not left in the image; its list of mirrors is.
# Times are fixed, and documentation, translations and caches are left out. Called by ../setup.sh.
set -eu

list=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
. /etc/os-release
codename=${VERSION_CODENAME:?/etc/os-release names no Debian release}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The machine's mirrors for this release, in one form whatever form they are kept in. Third parties' are not Debian's.
indexes() {
	apt-get indextargets --format "\$(RELEASE)|\$(REPO_URI)|\$(COMPONENT)|\$(ORIGIN)|" 'Created-By: Packages' |
		awk -F'|' -v release="$codename" -v origin="$1" '
			($1 == release || index($1, release "-") == 1 || index($1, release "/") == 1) && (origin == "" || $4 == origin) {
				key = $2 " " $1
				if (!(key in components)) order[++n] = key
				if (index(components[key] " ", " " $3 " ") == 0) components[key] = components[key] " " $3
			}
			END { for (i = 1; i <= n; i++) print "deb " order[i] components[order[i]] }'
}
indexes Debian >"$work/sources.list"
[ -s "$work/sources.list" ] || indexes '' >"$work/sources.list"
if [ ! -s "$work/sources.list" ]; then
	echo "build.sh: error: apt knows no package list for $codename" >&2
	echo "build.sh: hint: apt-get update" >&2
	exit 1
fi

# How the machine reaches them: proxies, certificates, checks.
apt-config dump --format '%F "%v";%n' |
	grep -E '^Acquire::(http|https|ftp|Check-|Retries|AllowInsecure|AllowWeak|ForceIPv)' >"$work/acquire" || :

packages=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$list" | paste -sd, -)

# Everything is unpacked in memory, in a mount that ends with this process: dpkg syncs each of some thousand files.
export SOURCE_DATE_EPOCH=1 LC_ALL=C.UTF-8 TMPDIR="$work/root"
mkdir "$TMPDIR"
# shellcheck disable=SC2016 # the inner shell expands these
unshare --mount --propagation private sh -c '
	mount -t tmpfs -o mode=0755,size=2g tmpfs "$TMPDIR" || echo "build.sh: no tmpfs here, so this is slow" >&2
	exec "$@"' sh \
	mmdebstrap --mode=root --variant=apt --format=tar \
	--include="$packages" \
	--keyring=/usr/share/keyrings/debian-archive-keyring.gpg --keyring=/etc/apt/trusted.gpg.d \
	--aptopt="$work/acquire" --aptopt='Acquire::Languages "none"' --dpkgopt='force-unsafe-io' \
	--customize-hook="$here/customize.sh \"\$1\"" \
	"$codename" "$out" "$work/sources.list"
