#!/bin/sh
# Read your writes through a pool, with psql. WRITES and READS are connection strings of its two ports.
set -eu
token=$(psql "$WRITES" -qAtX -v note="$1" <<'SQL'
INSERT INTO notes (note) VALUES (:'note');
SELECT lockstep_replay_token();
SQL
)
# The SET comes first in the transaction of the query: a pooler may give each transaction another session.
psql "$READS" -qAtX -v ON_ERROR_STOP=1 -v note="$1" -v token="$token" <<'SQL'
BEGIN;
SET LOCAL lockstep.wait_for_lsn = :'token';
SELECT count(*) FROM notes WHERE note = :'note';
COMMIT;
SQL
