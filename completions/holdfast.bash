# shellcheck shell=bash
# bash completion for holdfast. tests/cli/test_help.py holds it against the program's own --help.

_holdfast_commands='run acquire extend release status list why events guard sweep update start
    schedule work executions show cancel retry log serve token metrics init help'

# The options of a command that are its own, then those of every command.
_holdfast_options()
{
    local take='-w --wait --wait= -n --nonblock --ttl -E --conflict-exit-code --owner --note --priority'
    case $1 in
        run) echo "$take --grace -c --command --timeout --once --once-per" ;;
        acquire) echo "$take --pid" ;;
        extend) echo '--ttl' ;;
        release) echo '--force --fence --reason' ;;
        list) echo '--held --stale --all --prefix' ;;
        events) echo '--name --since -f --follow' ;;
        sweep) echo '--every --dry-run' ;;
        update) echo "$take --grace -c --command --name" ;;
        serve) echo '--listen --config --no-work --concurrency --grace --require-token --tls-cert --tls-key --max-connections --max-body --receive-timeout --log-format --log-requests' ;;
        token) echo '--note --prefix --allow --expires' ;;
        init) echo '--print --bump-epoch' ;;
        start) echo '-w --wait --wait= -n --nonblock -E --conflict-exit-code --owner --note --priority' \
            '--config --key --input --detach' ;;
        schedule) echo '--at --in --jitter --config --key --input --priority' ;;
        work) echo '--concurrency --workflow --max --drain --grace --config --log-format' ;;
        executions) echo '--workflow --state --limit' ;;
        retry) echo '--workflow --state --dry-run' ;;
        log) echo '-f --follow' ;;
    esac
    echo '--store --json -q --quiet -h --help --version'
}

# Does this option take the next word as its value?
_holdfast_takes_value()
{
    case $1 in
        -w|--ttl|--grace|-E|--conflict-exit-code|--owner|--note|--priority|--pid|-c|--command|\
        --timeout|--once|--once-per|--name|--fence|--reason|--prefix|--since|--every|--store|\
        --config|--key|--input|--workflow|--state|--limit|--listen|--tls-cert|--tls-key|\
        --at|--in|--jitter|--concurrency|--max|--max-connections|--max-body|--receive-timeout|--log-format|--allow|--expires) return 0 ;;
    esac
    return 1
}

# The names that the store knows and a shell needs no quotes for, as the options so far open it.
_holdfast_names()
{
    local i store=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == --store ]] && store=(--store "${COMP_WORDS[i + 1]}")
    done
    "${COMP_WORDS[0]}" "${store[@]}" --json list --all 2>/dev/null |
        sed -n 's/^{"name":"\([A-Za-z0-9_.,/@%+-]*\)".*/\1/p'
}

# The ids of the newest executions.
_holdfast_executions()
{
    "${COMP_WORDS[0]}" --json executions 2>/dev/null | sed -n 's/^{"id":"\([^"]*\)".*/\1/p'
}

_holdfast()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local i command='' operands=0
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if _holdfast_takes_value "${COMP_WORDS[i]}"; then
            ((i++))
        elif [[ ${COMP_WORDS[i]} == '=' ]]; then
            ((i++)) # readline splits --wait=5m into three words
        elif [[ ${COMP_WORDS[i]} == [!-]* ]]; then
            if [[ -z $command ]]; then
                command=${COMP_WORDS[i]}
            elif ((operands++ == 0)) && [[ $command == @(run|update) ]]; then
                # What follows NAME or FILE is a command line of its own.
                [[ ${COMP_WORDS[i + 1]} == -- ]] && ((i++))
                if declare -F _command_offset >/dev/null; then
                    ((i + 1 <= COMP_CWORD)) && _command_offset $((i + 1))
                else
                    mapfile -t COMPREPLY < <(compgen -c -- "$cur")
                fi
                return
            fi
        fi
    done
    case $prev in
        --pid) mapfile -t COMPREPLY < <(compgen -W "$(ps -eo pid= 2>/dev/null)" -- "$cur") ; return ;;
        --state) mapfile -t COMPREPLY < <(compgen -W 'PENDING RUNNING SUCCESS FAILED ABORTED' -- "$cur") ; return ;;
        --config|--input) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ; return ;;
        --once-per) mapfile -t COMPREPLY < <(compgen -W 'hour day' -- "$cur") ; return ;;
        --store) mapfile -t COMPREPLY < <(compgen -W 'sqlite: file: postgres:// dynamodb:// etcd:// http:' -- "$cur") ; return ;;
        --log-format) mapfile -t COMPREPLY < <(compgen -W 'text json' -- "$cur") ; return ;;
        --tls-cert|--tls-key) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ; return ;;
        --name) mapfile -t COMPREPLY < <(compgen -W "$(_holdfast_names)" -- "$cur") ; return ;;
    esac
    _holdfast_takes_value "$prev" && return
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_holdfast_options "$command")" -- "$cur")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$_holdfast_commands" -- "$cur")
    elif [[ $command == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$_holdfast_commands" -- "$cur")
    elif [[ $command == @(show|cancel|retry|log) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_holdfast_executions)" -- "$cur")
    elif ((operands == 0)) && [[ $command == token ]]; then
        mapfile -t COMPREPLY < <(compgen -W 'create list revoke' -- "$cur")
    elif [[ $command == update ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    elif ((operands == 0)) && [[ $command == @(run|acquire|extend|release|status|why|guard) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_holdfast_names)" -- "$cur")
    fi
}

complete -F _holdfast holdfast
