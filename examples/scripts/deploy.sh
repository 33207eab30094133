#!/bin/sh
# Holds a lock over several commands. See docs/scripts.md.

DISTLOCK_OWNER=$(distlock lock --ttl 5m --wait 10m deploy:web) || exit
export DISTLOCK_OWNER
trap 'distlock release deploy:web' EXIT
trap 'exit 1' HUP INT TERM

./build

distlock renew --ttl 5m deploy:web || exit # 76: it was lost, and another deployment may be running
./upload
