#!/bin/sh
# customize.sh ROOT: what the sandbox image has beyond its packages. Called by mmdebstrap through build.sh.
set -eu
root=$1

chroot "$root" groupadd --gid 1000 agent
chroot "$root" useradd --uid 1000 --gid 1000 --home-dir /workspace --no-create-home --shell /bin/bash agent
install -d -m 0755 -o 1000 -g 1000 "$root/workspace"

# dig by the name that people and agents know.
if [ -e "$root/usr/bin/kdig" ] && [ ! -e "$root/usr/bin/dig" ]; then
	ln -s kdig "$root/usr/bin/dig"
fi

# What a person reads stays on the person's machine; licences stay.
rm -rf "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* "$root"/usr/share/lintian/* \
	"$root"/usr/share/bash-completion/*
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l -delete

# How the building machine reaches its mirrors is that machine's business.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
rm -rf "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/log/*
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/machine-id"
