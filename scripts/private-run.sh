# shellcheck shell=bash
# Sourced by scripts that run PostgreSQL's test programs. It provides an
# unprivileged user and a private folder for all that the programs write, and ends
# every server in that folder.
#
# Needs `clone`, `bin` (the server's programs), PG, LOCKSTEP_EXTENSION_STAGE
# and a function `die`. Provides:
#
#   $owner      the user
#   $run        the user's folder, outside the clone, with work/ and tmp/. The user
#               need neither be able to read the clone nor to write to /usr.
#               Servers listen on sockets in this folder only, not on TCP.
#   hand_over   makes the user own everything in the folder
#   preload [DESTDIR_TOO]   copies the stage there, prints settings that load it
#   as_owner FOLDER COMMAND…   runs the command as that user, in $run/FOLDER, with
#               the variables in the array `environment` and a few others
#
# On every exit but SIGKILL the servers are stopped and the folder is removed.

demote=()
owner=$(id -un)
if [ "$(id -u)" -eq 0 ]; then
    owner=postgres
    id "$owner" >/dev/null 2>&1 || owner=nobody
    demote=(setpriv "--reuid=$(id -u "$owner")" "--regid=$(id -g "$owner")" --init-groups --inh-caps=-all)
fi

# Socket paths are limited to 107 bytes, so a long TMPDIR is not used. Neither is
# one that the user cannot enter.
run=
# shellcheck disable=SC2154 # of the sourcing script
for parent in "$("$clone/scripts/scratch-folder")" /tmp; do
    [ ${#parent} -le 40 ] || continue
    run=$(mktemp -d "$parent/lockstep-test.XXXXXX") || continue
    chown "$owner" "$run"
    ! "${demote[@]}" test -w "$run" || break
    rmdir "$run"
    run=
done
[ -n "$run" ] || die "no folder for run-time files that user $owner can enter: point TMPDIR at one"

# The processes whose working folder is $run or below: all that this script starts.
processes() {
    local link
    for link in /proc/[0-9]*/cwd; do
        case $(readlink "$link" 2>/dev/null) in
            "$run" | "$run"/*) link=${link#/proc/} && echo "${link%/cwd}" ;;
        esac
    done
}
child=
stop() {
    local pid tick left
    trap '' INT TERM HUP
    [ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null || true
    for tick in {1..100}; do
        left=$(processes)
        [ -n "$left" ] || break
        if [ "$tick" -eq 1 ]; then # immediate shutdown: the data is thrown away
            find "$run" -name postmaster.pid -exec head -n 1 {} \; | while read -r pid; do
                ! grep -qx "$pid" <<<"$left" || kill -QUIT "$pid" 2>/dev/null || true
            done
        fi
        sleep 0.1
    done
    # shellcheck disable=SC2086 # a list
    [ -z "$left" ] || kill -KILL $left 2>/dev/null || true
    rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir "$run/work" "$run/tmp"

hand_over() { [ ${#demote[@]} -eq 0 ] || chown -R "$owner:" "$run"; }

# With an argument also prints what CREATE EXTENSION needs: Debian's servers look
# for a control file below extension_destdir, and from 18 on PostgreSQL has
# extension_control_path for that.
preload() {
    cp -r "$LOCKSTEP_EXTENSION_STAGE" "$run/stage"
    echo "shared_preload_libraries = 'lockstep'"
    echo "dynamic_library_path = '$run/stage/usr/lib/postgresql/$PG/lib:\$libdir'"
    [ -n "${1:-}" ] || return 0
    # shellcheck disable=SC2154 # of the sourcing script
    if "$bin/postgres" --describe-config | grep '^extension_control_path' >/dev/null; then
        echo "extension_control_path = '$run/stage/usr/share/postgresql/$PG:\$system'"
    else
        echo "extension_destdir = '$run/stage'"
    fi
}

# The command gets only those variables of the caller's environment that tests
# document, and runs in a session of its own.
environment=()
as_owner() {
    local keep name vars=() status=0
    keep=$(env | sed -n 's/^\(SEED\|CI\|PROVE_FLAGS\|PG_TEST_[A-Z_]*\|LOCKSTEP_TEST_[A-Z_]*\)=.*/\1/p')
    for name in $keep; do vars+=("$name=${!name}"); done
    (
        cd "$run/$1" || exit
        shift
        exec setsid "${demote[@]}" env -i "${vars[@]}" \
            PATH="$bin:/usr/bin:/bin:/usr/sbin:/sbin" HOME="$run/work" USER="$owner" LOGNAME="$owner" \
            LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC TMPDIR="$run/tmp" PG_REGRESS_SOCK_DIR="$run/tmp" \
            PG="$PG" PG_TEST_PORT_DIR="$run/work/ports" \
            TESTDIR="$run/work" TESTDATADIR="$run/work/tmp_check" TESTLOGDIR="$run/work/tmp_check/log" \
            "${environment[@]}" "$@" </dev/null
    ) &
    child=$!
    wait "$child" || status=$?
    child=
    return $status
}
