#!/bin/sh
# A worker in shell: it claims executions of a workflow through Holdfast's service (curl, jq) and runs a command for each,
# whose stdin is the input.
#
#   worker.sh http://localhost:7480 resize ./resize.sh
#
# What it claims is taken to be started: if this script dies, the execution is ABORTED when its lease runs out, or claimed
# again where it was made with "onLost": "retry". DRAIN=1 ends it when there is nothing more to do.
set -eu
url=$1/v1/executions workflow=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'kill -s KILL -- "-${command-}" 2>/dev/null; exit 143' TERM INT

# ask PATH [CURL-OPTION...]: prints the answer; fails on a refusal, and where there is none.
ask() {
    path=$1
    shift
    curl -sS --fail-with-body --max-time 40 ${HOLDFAST_API_TOKEN:+-H "Authorization: Bearer $HOLDFAST_API_TOKEN"} "$@" "$url/$path"
}

# Did nobody answer, or somebody who may answer otherwise later?
is_temporary() {
    [ -z "$1" ] || [ "$(printf '%s' "$1" | jq .status)" -ge 500 ]
}

# Renew the lease every few seconds. Says why the command must not go on: cancelled, or lost.
watch_over() {
    failures=0
    while sleep 3 && kill -0 "$command" 2>/dev/null; do
        if answer=$(printf '%s' "$lease" | ask "$id/heartbeat" -d @- 2>/dev/null); then
            failures=0
            [ "$(printf '%s' "$answer" | jq .cancelRequested)" = false ] || { echo cancelled >"$dir/why"; break; }
        else
            failures=$((failures + 1)) # of a ttl of 30 s: before it has run out
            if ! is_temporary "$answer" || [ "$failures" -ge 5 ]; then
                echo lost >"$dir/why"
                break
            fi
        fi
    done
    kill -s KILL -- "-$command" 2>/dev/null || true
}

run_one() {
    id=$(jq -r .id "$dir/claimed")
    lease=$(jq -c '{token, fence}' "$dir/claimed")
    rm -f "$dir/why"
    ask "$id/input" -o "$dir/input" --retry 5 --retry-connrefused
    setsid "$@" <"$dir/input" >"$dir/output" 2>&1 & # a process group of its own, to be ended as a whole
    command=$!
    watch_over &
    watcher=$!
    code=0
    wait "$command" || code=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    why=$(cat "$dir/why" 2>/dev/null || true)
    [ "$why" != lost ] || { echo "worker: $id was lost"; return; }
    state=SUCCESS
    [ "$code" = 0 ] || state=FAILED
    [ "$why" != cancelled ] || state=ABORTED
    tail -c 65536 "$dir/output" >"$dir/tail" # the end is what is looked at when something has failed
    skipped=$(($(wc -c <"$dir/output") - $(wc -c <"$dir/tail")))
    printf '%s' "$lease" | jq -c --arg state "$state" --arg why "$why" --argjson code "$code" --argjson skipped "$skipped" \
        --rawfile tail "$dir/tail" '. + {state: $state, exitCode: $code, reason: $why, outputTail: $tail, outputSkipped: $skipped}' \
        >"$dir/finish"
    # Until it is told: the same finish again is done. What is refused with 4xx will not be taken later either.
    until answer=$(ask "$id/finish" --data-binary "@$dir/finish"); do
        is_temporary "$answer" || { echo "worker: $id was lost"; return; }
        sleep 1
    done
    echo "worker: $id $state"
}

while :; do
    wait_ms=20000
    [ -z "${DRAIN-}" ] || wait_ms=0
    jq -cn --arg workflow "$workflow" --arg worker "$(hostname)/$$" --argjson wait "$wait_ms" \
        '{worker: $worker, workflows: [$workflow], ttlMs: 30000, waitMs: $wait}' >"$dir/claim"
    if ! answer=$(ask claim -d "@$dir/claim"); then
        is_temporary "$answer" || { echo "worker: $answer" >&2; exit 1; }
        sleep 1
        continue
    fi
    printf '%s' "$answer" | jq -c '.items[0] // empty' >"$dir/claimed"
    if [ -s "$dir/claimed" ]; then
        run_one "$@"
    elif [ -n "${DRAIN-}" ]; then
        exit 0
    fi
done
