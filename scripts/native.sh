# shellcheck shell=bash
# Sourced. `suite_of MAJOR` prints the Debian release that packages this PostgreSQL
# major, or nothing if none does.
suite_of() {
    case $1 in
        15) echo bookworm ;;
        17) echo trixie ;;
        18) echo sid ;;
        19) echo experimental ;;
    esac
}

# `native` is true if tests of PostgreSQL $PG run on this system itself: inside a
# Debian root that was made for them, if $PG is installed, or if scripts/setup can
# install it.
native() {
    [ -z "${LOCKSTEP_IN_ROOT:-}" ] || return 0
    # shellcheck disable=SC1091
    [ "$(suite_of "$PG")" != "$(. /etc/os-release && echo "${VERSION_CODENAME:-none}")" ] || return 0
    [ -x "/usr/lib/postgresql/$PG/bin/postgres" ] && return 0
    LC_ALL=C apt-cache policy "postgresql-server-dev-$PG" 2>/dev/null | grep -q 'Candidate: [^(]'
}
