--
-- What CREATE EXTENSION makes, on a server that preloads the library and is
-- not a standby: every view has its row, columns of a standby are empty, and
-- only those who should may look and reset.
--
CREATE EXTENSION lockstep;

-- the library starts its worker, which sees that there is nothing to do here
DO $$
BEGIN
    FOR i IN 1..1000 LOOP
        EXIT WHEN EXISTS (SELECT FROM lockstep_stat_priority
                          WHERE detail LIKE 'not in recovery%');
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;

-- everything that users meet
SELECT p.oid::regprocedure AS function, p.prorettype::regtype AS returns,
       p.provolatile AS volatile, p.proparallel AS parallel
FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lockstep')
ORDER BY p.proname COLLATE "C";
SELECT c.relname AS view, a.attname AS column, a.atttypid::regtype AS type
FROM pg_depend d JOIN pg_class c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lockstep')
ORDER BY c.relname COLLATE "C", a.attnum;

--
-- the rows of a primary
--
\x on
SELECT in_recovery, received_lsn, replayed_lsn, lag_bytes, lag_ms, conflicts,
       last_conflict, last_conflict_at, last_conflict_ms,
       stats_reset <= now() AS stats_reset, streaming
FROM lockstep_stat_replay;
SELECT records >= records_ahead AS records, blocks_ahead >= blocks_remembered + blocks_missing AS blocks,
       prefetcher, stats_reset <= now() AS stats_reset, dispatched, done_by_helpers, waits,
       retired, record_distance, wal_distance, wait_cpu_ms + wait_io_ms + wait_lock_ms AS wait_ms
FROM lockstep_stat_replay_pipeline;
SELECT count(*) AS workers FROM lockstep_stat_replay_workers;
SELECT method, detail, demoted, pending, stuck, demotions, restores, refusals,
       last_refusal, stats_reset <= now() AS stats_reset, short_slices, slice_detail,
       demotes, replay_cpu_wait_ms, cpu_wait_ms, demoted_cpu_wait_ms, lost_to_replay_ms, lost_to_others_ms
FROM lockstep_stat_priority;
SELECT mode, concurrency_limit, running, waiting, waits, wait_ms, would_wait,
       timeouts, stats_reset <= now() AS stats_reset, phase, beside_others
FROM lockstep_stat_throttle;
\x off

--
-- the token: what is durable now, never more than there is, on this timeline
--
CREATE FUNCTION pg_temp.timeline(token text) RETURNS text LANGUAGE sql
    AS $$ SELECT substring(token FROM '^([0-9]+)/[0-9A-F]+/[0-9A-F]+$') $$;
CREATE FUNCTION pg_temp.lsn(token text) RETURNS pg_lsn LANGUAGE sql
    AS $$ SELECT substring(token FROM '/(.*)$')::pg_lsn $$;
SELECT pg_temp.timeline(lockstep_replay_token()) AS timeline;
SELECT pg_current_wal_flush_lsn() AS flushed \gset
SELECT pg_temp.lsn(lockstep_replay_token()) >= :'flushed' AS covers_what_is_flushed;
SELECT pg_temp.lsn(lockstep_replay_token()) <= pg_current_wal_insert_lsn() AS exists_already;
-- it covers this session's last commit, durable or not
CREATE TABLE written (i int);
SELECT pg_current_wal_insert_lsn() AS before \gset
SET synchronous_commit = off;
INSERT INTO written VALUES (1);
SELECT pg_temp.lsn(lockstep_replay_token()) > :'before' AS covers_own_commit;
RESET synchronous_commit;
DROP TABLE written;

--
-- resets, each of its own view
--
SELECT r.stats_reset AS replay, p.stats_reset AS priority, t.stats_reset AS throttle
FROM lockstep_stat_replay r, lockstep_stat_priority p, lockstep_stat_throttle t \gset
SELECT lockstep_stat_replay_reset();
SELECT r.stats_reset > :'replay' AS replay, p.stats_reset > :'priority' AS priority,
       t.stats_reset > :'throttle' AS throttle
FROM lockstep_stat_replay r, lockstep_stat_priority p, lockstep_stat_throttle t;
SELECT lockstep_stat_priority_reset();
SELECT r.stats_reset > :'replay' AS replay, p.stats_reset > :'priority' AS priority,
       t.stats_reset > :'throttle' AS throttle
FROM lockstep_stat_replay r, lockstep_stat_priority p, lockstep_stat_throttle t;
SELECT lockstep_stat_throttle_reset();
SELECT r.stats_reset > :'replay' AS replay, p.stats_reset > :'priority' AS priority,
       t.stats_reset > :'throttle' AS throttle
FROM lockstep_stat_replay r, lockstep_stat_priority p, lockstep_stat_throttle t;

--
-- grants
--
CREATE ROLE regress_lockstep_plain;
CREATE ROLE regress_lockstep_monitor;
GRANT pg_monitor TO regress_lockstep_monitor;

SET ROLE regress_lockstep_plain;
SELECT * FROM lockstep_stat_replay;
SELECT * FROM lockstep_stat_replay_pipeline;
SELECT * FROM lockstep_stat_replay_workers;
SELECT * FROM lockstep_stat_priority;
SELECT * FROM lockstep_stat_throttle;
SELECT lockstep_stat_replay();
SELECT lockstep_stat_priority();
SELECT lockstep_stat_throttle();
SELECT lockstep_stat_replay_reset();
SELECT lockstep_stat_priority_reset();
SELECT lockstep_stat_throttle_reset();
-- whoever writes may ask what to wait for
SELECT lockstep_replay_token() IS NOT NULL AS token;

SET ROLE regress_lockstep_monitor;
SELECT count(*) FROM lockstep_stat_replay;
SELECT count(*) FROM lockstep_stat_replay_pipeline;
SELECT count(*) FROM lockstep_stat_replay_workers;
SELECT count(*) FROM lockstep_stat_priority;
SELECT count(*) FROM lockstep_stat_throttle;
SELECT (lockstep_stat_replay()).in_recovery, (lockstep_stat_priority()).stuck,
       (lockstep_stat_throttle()).waiting;
SELECT lockstep_stat_replay_reset();
SELECT lockstep_stat_priority_reset();
SELECT lockstep_stat_throttle_reset();
RESET ROLE;

-- a reset can be granted
GRANT EXECUTE ON FUNCTION lockstep_stat_throttle_reset() TO regress_lockstep_monitor;
SET ROLE regress_lockstep_monitor;
SELECT lockstep_stat_throttle_reset();
RESET ROLE;
REVOKE EXECUTE ON FUNCTION lockstep_stat_throttle_reset() FROM regress_lockstep_monitor;
-- but not to everybody by granting everything
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_lockstep_plain;
SET ROLE regress_lockstep_plain;
SELECT lockstep_stat_replay_reset();
SELECT lockstep_stat_priority_reset();
SELECT lockstep_stat_throttle_reset();
SELECT lockstep_flush_buffers();
SELECT lockstep_stat_replay();
SELECT lockstep_stat_replay_pipeline();
SELECT lockstep_stat_replay_workers();
SELECT lockstep_stat_priority();
SELECT lockstep_stat_throttle();
RESET ROLE;
-- whoever may read what other processes do may read this, too
GRANT pg_read_all_stats TO regress_lockstep_plain;
SET ROLE regress_lockstep_plain;
SELECT count(*) FROM lockstep_stat_replay_workers();
RESET ROLE;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM regress_lockstep_plain;

DROP ROLE regress_lockstep_plain;
DROP ROLE regress_lockstep_monitor;

--
-- nothing stays behind, and it can be made again
--
DROP EXTENSION lockstep;
SELECT count(*) FROM pg_class WHERE relname LIKE 'lockstep%';
SELECT count(*) FROM pg_proc WHERE proname LIKE 'lockstep%';
CREATE EXTENSION lockstep;
CREATE EXTENSION lockstep;
DROP EXTENSION lockstep;
