# shellcheck shell=bash
# Sourced. `in_group COMMAND…` runs a command or function in a process group of
# its own, without standard input. `begin_group COMMAND…` only starts it, and leaves its number in
# $group for `await_group`. When the sourcing script is interrupted or
# terminated, it sends SIGTERM to these whole groups, waits up to 20 s for them to clean
# up, and exits. Otherwise a signal that reaches only the script would leave the commands
# running.

group=
declare -A groups=() # those that run, by their number

begin_group() {
    set -m # job control: its own group, and SIGINT not ignored in it
    "$@" </dev/null &
    group=$!
    set +m
    groups[$group]=-$group
}

await_group() {
    local status=0
    wait "$1" || status=$?
    unset "groups[$1]"
    return $status
}

in_group() {
    begin_group "$@"
    await_group "$group"
}

end_groups() {
    trap '' INT TERM HUP
    if [ ${#groups[@]} -gt 0 ]; then
        kill -TERM -- "${groups[@]}" 2>/dev/null || true
        for _ in {1..200}; do
            # It succeeds while one of them is left.
            kill -0 -- "${groups[@]}" 2>/dev/null || break
            sleep 0.1
        done
    fi
    exit "$1"
}
trap 'end_groups 130' INT
trap 'end_groups 143' TERM HUP
