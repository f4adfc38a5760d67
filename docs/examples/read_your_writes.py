"""Read your writes through a pool, with psycopg 3. WRITES and READS are connection strings of its two ports."""

import os
import sys

import psycopg
from psycopg import sql

note = sys.argv[1]

# A pooler in transaction mode loses prepared statements.
with psycopg.connect(os.environ["WRITES"], prepare_threshold=None) as writer:
    writer.execute("INSERT INTO notes (note) VALUES (%s)", [note])
    writer.commit()
    # With lockstep.report_token the reply to COMMIT had it, unless a pooler keeps it to itself.
    token = writer.info.parameter_status("lockstep.replay_token")
    if not token:
        token = writer.execute("SELECT lockstep_replay_token()").fetchone()[0]

with psycopg.connect(os.environ["READS"], prepare_threshold=None) as reader:
    # The first statement of the transaction: a pooler may give each transaction another session.
    reader.execute(sql.SQL("SET LOCAL lockstep.wait_for_lsn = {}").format(token))
    print(reader.execute("SELECT count(*) FROM notes WHERE note = %s", [note]).fetchone()[0])
