/* extension/sql/lockstep--0.1--0.2.sql */

-- complain if the script is sourced in psql rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION lockstep UPDATE TO '0.2'" to load this file. \quit

-- On the primary: the value to pass to SET lockstep.wait_for_lsn on a standby, as
-- TIMELINE/LSN. In 0.1 it was a pg_lsn.
DROP FUNCTION lockstep_replay_token();

CREATE FUNCTION lockstep_replay_token() RETURNS text
AS 'MODULE_PATHNAME', 'lockstep_replay_token_0_2' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- What replay does before it comes to a record. lockstep_stat_replay_reset() resets it.
CREATE FUNCTION lockstep_stat_replay_pipeline(
    OUT records bigint,
    OUT records_ahead bigint,
    OUT blocks_ahead bigint,
    OUT blocks_remembered bigint,
    OUT blocks_missing bigint,
    OUT prefetcher boolean,
    OUT stats_reset timestamptz,
    OUT parallel text,
    OUT dispatched bigint,
    OUT done_by_helpers bigint,
    OUT inline_kind bigint,
    OUT inline_missing bigint,
    OUT inline_map bigint,
    OUT inline_large bigint,
    OUT barriers_ddl bigint,
    OUT barriers_checkpoint bigint,
    OUT barriers_other bigint,
    OUT waits bigint,
    OUT wait_ms double precision,
    OUT dispatched_until pg_lsn,
    OUT blocks_asked_for bigint,
    OUT retired bigint,
    OUT record_distance bigint,
    OUT wal_distance bigint,
    OUT wait_cpu_ms double precision,
    OUT wait_io_ms double precision,
    OUT wait_lock_ms double precision,
    OUT inline_late bigint)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_replay_pipeline AS SELECT * FROM lockstep_stat_replay_pipeline();

REVOKE ALL ON FUNCTION lockstep_stat_replay_pipeline() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_stat_replay_pipeline() TO pg_monitor;
GRANT SELECT ON lockstep_stat_replay_pipeline TO pg_monitor;

-- What each replay helper has done since the server started, and what it waits for.
CREATE FUNCTION lockstep_stat_replay_workers(
    OUT worker integer,
    OUT pid integer,
    OUT records bigint,
    OUT blocks bigint,
    OUT given_back bigint,
    OUT waits bigint,
    OUT wait_ms double precision,
    OUT lsn pg_lsn,
    OUT bytes bigint,
    OUT queue_depth integer,
    OUT wait_event_type text,
    OUT wait_event text)
RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_replay_workers AS SELECT * FROM lockstep_stat_replay_workers();

REVOKE ALL ON FUNCTION lockstep_stat_replay_workers() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_stat_replay_workers() TO pg_monitor;
GRANT SELECT ON lockstep_stat_replay_workers TO pg_monitor;

-- Whether WAL is streamed.
DROP VIEW lockstep_stat_replay;
DROP FUNCTION lockstep_stat_replay();

CREATE FUNCTION lockstep_stat_replay(
    OUT in_recovery boolean,
    OUT received_lsn pg_lsn,
    OUT replayed_lsn pg_lsn,
    OUT lag_bytes bigint,
    OUT lag_ms double precision,
    OUT conflicts bigint,
    OUT last_conflict text,
    OUT last_conflict_at timestamptz,
    OUT last_conflict_ms double precision,
    OUT stats_reset timestamptz,
    OUT streaming boolean)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_replay AS SELECT * FROM lockstep_stat_replay();

REVOKE ALL ON FUNCTION lockstep_stat_replay() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_stat_replay() TO pg_monitor;
GRANT SELECT ON lockstep_stat_replay TO pg_monitor;

-- Time slices, and who waits for the CPU.
DROP VIEW lockstep_stat_priority;
DROP FUNCTION lockstep_stat_priority();

CREATE FUNCTION lockstep_stat_priority(
    OUT method text,
    OUT detail text,
    OUT demoted integer,
    OUT pending integer,
    OUT stuck integer,
    OUT demotions bigint,
    OUT restores bigint,
    OUT refusals bigint,
    OUT last_refusal text,
    OUT stats_reset timestamptz,
    OUT short_slices integer,
    OUT slice_detail text,
    OUT demotes text,
    OUT replay_cpu_wait_ms double precision,
    OUT cpu_wait_ms double precision,
    OUT demoted_cpu_wait_ms double precision,
    OUT lost_to_replay_ms double precision,
    OUT lost_to_others_ms double precision)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_priority AS SELECT * FROM lockstep_stat_priority();

REVOKE ALL ON FUNCTION lockstep_stat_priority() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_stat_priority() TO pg_monitor;
GRANT SELECT ON lockstep_stat_priority TO pg_monitor;

-- What is done about lag.
DROP VIEW lockstep_stat_throttle;
DROP FUNCTION lockstep_stat_throttle();

CREATE FUNCTION lockstep_stat_throttle(
    OUT mode text,
    OUT concurrency_limit integer,
    OUT running integer,
    OUT waiting integer,
    OUT waits bigint,
    OUT wait_ms double precision,
    OUT would_wait bigint,
    OUT timeouts bigint,
    OUT stats_reset timestamptz,
    OUT phase text,
    OUT beside_others integer)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_throttle AS SELECT * FROM lockstep_stat_throttle();

REVOKE ALL ON FUNCTION lockstep_stat_throttle() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_stat_throttle() TO pg_monitor;
GRANT SELECT ON lockstep_stat_throttle TO pg_monitor;

-- Permanent blocks in shared buffers that were used of late.
CREATE FUNCTION lockstep_hot_blocks(
    OUT reldatabase oid,
    OUT reltablespace oid,
    OUT relfilenode oid,
    OUT relforknumber integer,
    OUT relblocknumber bigint,
    OUT usagecount integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Reads blocks into shared buffers, 1024 at most. Returns how many are there.
CREATE FUNCTION lockstep_read_blocks(
    reltablespace oid, relfilenode oid, relforknumber integer, blocks bigint[])
RETURNS integer
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

REVOKE ALL ON FUNCTION lockstep_hot_blocks() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_read_blocks(oid, oid, integer, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lockstep_hot_blocks() TO pg_monitor;
GRANT EXECUTE ON FUNCTION lockstep_read_blocks(oid, oid, integer, bigint[]) TO pg_monitor;
