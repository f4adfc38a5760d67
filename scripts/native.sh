# shellcheck shell=bash
# Sourced. `native` is true where tests of PostgreSQL $PG run on this system
# itself: inside a Debian root made for them, where it is installed, or where
# scripts/setup can install it.
native() {
    [ -z "${LOCKSTEP_IN_ROOT:-}" ] || return 0
    # shellcheck disable=SC1091
    case $PG-$(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
        15-bookworm | 17-trixie) return 0 ;;
    esac
    [ -x "/usr/lib/postgresql/$PG/bin/postgres" ] && return 0
    LC_ALL=C apt-cache policy "postgresql-server-dev-$PG" 2>/dev/null | grep -q 'Candidate: [^(]'
}
