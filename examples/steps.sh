#!/bin/sh
# A script that holds a lock over several steps. The lease is bound to this shell: if it is killed, the lock is free at
# once (a step that was running runs on: only `holdfast run` ends the whole tree first). If a step takes longer than the
# ttl, the lease is lost; then `extend` exits with 76 and `set -e` ends the script before it does more.
set -eu
HOLDFAST_NAME=publish
HOLDFAST_TOKEN=$(holdfast acquire --pid $$ --ttl 10m --wait=30s "$HOLDFAST_NAME")
export HOLDFAST_NAME HOLDFAST_TOKEN
trap 'holdfast release -q' EXIT

echo "collect"
holdfast extend -q
echo "upload"
