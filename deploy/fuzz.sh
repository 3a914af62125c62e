#!/bin/sh
# fuzz.sh DURATION: runs every fuzz target of the module for that long, one after the other, as go test can do only one.
set -eu
cd "$(dirname "$0")/.."

status=0 count=0
for package in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || :); do
		echo "fuzz: $package $target"
		count=$((count + 1))
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$package" || status=1
	done
done
echo "fuzz: $count targets"
exit $status
