# fish completion for holdfast. tests/cli/test_help.py holds it against the program's own --help.

set -g __holdfast_commands run acquire extend release status list why events guard sweep update start schedule work executions show cancel retry log serve token metrics init help

# The names that the store knows.
function __holdfast_names
    command holdfast --json list --all 2>/dev/null | string match -rg '^\{"name":"([^"\\\\]*)"'
end

# The ids of the newest executions.
function __holdfast_executions
    command holdfast --json executions 2>/dev/null | string match -rg '^\{"id":"([^"]*)"'
end

# Is the command one of these?
function __holdfast_is
    __fish_seen_subcommand_from $argv
end

function __holdfast_needs_command
    not __fish_seen_subcommand_from $__holdfast_commands
end

complete -c holdfast -f

complete -c holdfast -n __holdfast_needs_command -a run -d 'Hold a name while a command runs'
complete -c holdfast -n __holdfast_needs_command -a acquire -d 'Take a lease and print its token'
complete -c holdfast -n __holdfast_needs_command -a extend -d 'Renew a lease'
complete -c holdfast -n __holdfast_needs_command -a release -d 'Give a lease back, or free one by force'
complete -c holdfast -n __holdfast_needs_command -a status -d 'Show who holds a name'
complete -c holdfast -n __holdfast_needs_command -a list -d 'List locks'
complete -c holdfast -n __holdfast_needs_command -a why -d 'Tell the story of a lock'
complete -c holdfast -n __holdfast_needs_command -a events -d 'Show what happened'
complete -c holdfast -n __holdfast_needs_command -a guard -d 'Check a fence'
complete -c holdfast -n __holdfast_needs_command -a sweep -d 'Free expired leases and those of dead holders'
complete -c holdfast -n __holdfast_needs_command -a update -d 'Replace a file atomically, under a lock'
complete -c holdfast -n __holdfast_needs_command -a start -d 'Run a workflow as an execution'
complete -c holdfast -n __holdfast_needs_command -a schedule -d 'Record an execution for later'
complete -c holdfast -n __holdfast_needs_command -a work -d 'Claim executions that are due and run them'
complete -c holdfast -n __holdfast_needs_command -a executions -d 'List executions'
complete -c holdfast -n __holdfast_needs_command -a show -d 'Show an execution'
complete -c holdfast -n __holdfast_needs_command -a cancel -d 'Stop an execution'
complete -c holdfast -n __holdfast_needs_command -a retry -d 'Repeat executions that have ended'
complete -c holdfast -n __holdfast_needs_command -a log -d 'Print what an execution has printed'
complete -c holdfast -n __holdfast_needs_command -a serve -d 'Serve the store over HTTP'
complete -c holdfast -n __holdfast_needs_command -a token -d 'Make, list and revoke tokens of the service'
complete -c holdfast -n __holdfast_needs_command -a metrics -d 'Print totals for Prometheus'
complete -c holdfast -n __holdfast_needs_command -a init -d 'Create the store or bring its schema up to date'
complete -c holdfast -n __holdfast_needs_command -a help -d 'Show help'

complete -c holdfast -l store -x -a 'sqlite: file: postgres:// dynamodb:// etcd:// http:' -d 'Where locks are kept'
complete -c holdfast -l json -d 'Print JSON'
complete -c holdfast -s q -l quiet -d 'Print only what was asked for, and errors'
complete -c holdfast -s h -l help -d 'Show help'
complete -c holdfast -l version -d 'Show the version'

complete -c holdfast -n '__holdfast_is run acquire extend release status why guard' -a '(__holdfast_names)'
complete -c holdfast -n '__holdfast_is show cancel retry log' -a '(__holdfast_executions)'
complete -c holdfast -n '__holdfast_is help' -a "$__holdfast_commands"
complete -c holdfast -n '__holdfast_is update' -F

complete -c holdfast -n '__holdfast_is run acquire update start' -s w -x -d 'Wait up to so long'
complete -c holdfast -n '__holdfast_is run acquire update start' -l wait -d 'Wait for ever, or =D'
complete -c holdfast -n '__holdfast_is run acquire update start' -s n -l nonblock -d 'Do not wait'
complete -c holdfast -n '__holdfast_is run acquire update extend' -l ttl -x -d 'How long the lease lasts unless renewed'
complete -c holdfast -n '__holdfast_is run update' -l grace -x -d 'Time between SIGTERM and SIGKILL'
complete -c holdfast -n '__holdfast_is run acquire update start' -s E -l conflict-exit-code -x -d 'Exit code when it is held by another'
complete -c holdfast -n '__holdfast_is run acquire update start' -l owner -x -d 'Who holds it'
complete -c holdfast -n '__holdfast_is run acquire update start token' -l note -x -d 'What for'
complete -c holdfast -n '__holdfast_is run acquire update start schedule' -l priority -x -d 'The highest goes first'
complete -c holdfast -n '__holdfast_is acquire' -l pid -x -a '(__fish_complete_pids)' -d 'The lease ends with this process'
complete -c holdfast -n '__holdfast_is run update' -s c -l command -x -d 'Run this by the shell'
complete -c holdfast -n '__holdfast_is run' -l timeout -x -d 'Stop the command after so long'
complete -c holdfast -n '__holdfast_is run' -l once -x -d 'Do nothing if this has already succeeded'
complete -c holdfast -n '__holdfast_is run' -l once-per -x -a 'hour day' -d 'Do nothing if it has succeeded this hour or day'
complete -c holdfast -n '__holdfast_is update events' -l name -x -a '(__holdfast_names)' -d 'The name of the lock'
complete -c holdfast -n '__holdfast_is release' -l force -d 'Free it without its token'
complete -c holdfast -n '__holdfast_is release' -l fence -x -d 'The fence that status showed'
complete -c holdfast -n '__holdfast_is release' -l reason -x -d 'Why, for the record'
complete -c holdfast -n '__holdfast_is list' -l held -d 'What is held, stale or not'
complete -c holdfast -n '__holdfast_is list' -l stale -d 'What may be taken over'
complete -c holdfast -n '__holdfast_is list' -l all -d 'Every name'
complete -c holdfast -n '__holdfast_is list token' -l prefix -x -a '(__holdfast_names)' -d 'Only names that begin with this'
complete -c holdfast -n '__holdfast_is events' -l since -x -d 'Only the last'
complete -c holdfast -n '__holdfast_is events log' -s f -l follow -d 'Go on as it happens'
complete -c holdfast -n '__holdfast_is sweep' -l every -x -d 'Sweep again every'
complete -c holdfast -n '__holdfast_is sweep retry' -l dry-run -d 'Only say what would be done'
complete -c holdfast -n '__holdfast_is init' -l print -d 'Print the schema instead'
complete -c holdfast -n '__holdfast_is init' -l bump-epoch -d 'Raise every later fence past lost ones'
complete -c holdfast -n '__holdfast_is start schedule work' -l config -r -F -d 'The workflows'
complete -c holdfast -n '__holdfast_is start schedule' -l key -x -d 'At most one execution with this key'
complete -c holdfast -n '__holdfast_is start schedule' -l input -r -F -d 'What the command reads'
complete -c holdfast -n '__holdfast_is start' -l detach -d 'Only record it as PENDING'
complete -c holdfast -n '__holdfast_is schedule' -l at -x -d 'Not before this time'
complete -c holdfast -n '__holdfast_is schedule' -l in -x -d 'Not before so long from now'
complete -c holdfast -n '__holdfast_is schedule' -l jitter -x -d 'Up to so much later, at random'
complete -c holdfast -n '__holdfast_is work serve' -l concurrency -x -d 'Commands at once'
complete -c holdfast -n '__holdfast_is work' -l workflow -x -d 'Only this workflow'
complete -c holdfast -n '__holdfast_is work' -l max -x -d 'Exit after so many executions'
complete -c holdfast -n '__holdfast_is work' -l drain -d 'Exit when nothing is due'
complete -c holdfast -n '__holdfast_is work serve' -l grace -x -d 'How long commands may go on after SIGTERM'
complete -c holdfast -n '__holdfast_is executions retry' -l workflow -x -d 'Only those of this workflow'
complete -c holdfast -n '__holdfast_is executions retry' -l state -x -a 'PENDING RUNNING SUCCESS FAILED ABORTED' -d 'Only those in this state'
complete -c holdfast -n '__holdfast_is executions' -l limit -x -d 'At most so many'
complete -c holdfast -n '__holdfast_is token' -a 'create list revoke'
complete -c holdfast -n '__holdfast_is token' -l allow -x -a 'locks:read locks:write locks:force executions:read executions:write executions:work events:read metrics:read webhooks:write' -d 'What it may do'
complete -c holdfast -n '__holdfast_is token' -l expires -x -d 'How long it is good'
complete -c holdfast -n '__holdfast_is serve' -l listen -x -d 'HOST:PORT or unix:PATH'
complete -c holdfast -n '__holdfast_is serve' -l config -r -d 'The workflows'
complete -c holdfast -n '__holdfast_is serve' -l max-body -x -d 'Bytes of a webhook'
complete -c holdfast -n '__holdfast_is serve' -l receive-timeout -x -d 'How long a request may take to arrive'
complete -c holdfast -n '__holdfast_is serve' -l no-work -d 'Only record what is to be run'
complete -c holdfast -n '__holdfast_is serve' -l require-token -d 'Serve only who has a token'
complete -c holdfast -n '__holdfast_is serve' -l tls-cert -r -d 'Certificate'
complete -c holdfast -n '__holdfast_is serve' -l tls-key -r -d 'Its key'
complete -c holdfast -n '__holdfast_is serve' -l max-connections -x -d 'Clients at once'
complete -c holdfast -n '__holdfast_is serve work' -l log-format -x -a 'text json' -d 'How lines look'
complete -c holdfast -n '__holdfast_is serve' -l log-requests -d 'A line for every request'
