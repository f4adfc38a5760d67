# shellcheck shell=bash
# Sourced. `in_group COMMAND…` runs a command or function in a process group of
# its own, without standard input. When the sourcing script is interrupted or
# terminated, it sends SIGTERM to that whole group, waits up to 20 s for it to clean
# up, and exits. Otherwise a signal that reaches only the script would leave the command
# running.

group=

in_group() {
    local status=0
    set -m # job control: its own group, and SIGINT not ignored in it
    "$@" </dev/null &
    group=$!
    set +m
    wait "$group" || status=$?
    group=
    return $status
}

end_group() {
    trap '' INT TERM HUP
    if [ -n "$group" ] && kill -TERM -- "-$group" 2>/dev/null; then
        for _ in {1..200}; do
            kill -0 -- "-$group" 2>/dev/null || break
            sleep 0.1
        done
    fi
    exit "$1"
}
trap 'end_group 130' INT
trap 'end_group 143' TERM HUP
