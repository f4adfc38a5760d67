/* extension/sql/lockstep--0.1.sql */

-- complain if the script is sourced in psql rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION lockstep" to load this file. \quit

-- On the primary: the value to pass to SET lockstep.wait_for_lsn on a standby.
CREATE FUNCTION lockstep_replay_token() RETURNS pg_lsn
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

-- Writes every changed page of every database to its file; returns the number of databases.
CREATE FUNCTION lockstep_flush_buffers() RETURNS integer
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

REVOKE ALL ON FUNCTION lockstep_flush_buffers() FROM PUBLIC;

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
    OUT stats_reset timestamptz)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

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
    OUT stats_reset timestamptz)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION lockstep_stat_throttle(
    OUT mode text,
    OUT concurrency_limit integer,
    OUT running integer,
    OUT waiting integer,
    OUT waits bigint,
    OUT wait_ms double precision,
    OUT would_wait bigint,
    OUT timeouts bigint,
    OUT stats_reset timestamptz)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION lockstep_stat_replay_reset() RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION lockstep_stat_priority_reset() RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE FUNCTION lockstep_stat_throttle_reset() RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW lockstep_stat_replay AS SELECT * FROM lockstep_stat_replay();
CREATE VIEW lockstep_stat_priority AS SELECT * FROM lockstep_stat_priority();
CREATE VIEW lockstep_stat_throttle AS SELECT * FROM lockstep_stat_throttle();

REVOKE ALL ON FUNCTION lockstep_stat_replay() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_stat_priority() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_stat_throttle() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_stat_replay_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_stat_priority_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION lockstep_stat_throttle_reset() FROM PUBLIC;

GRANT EXECUTE ON FUNCTION lockstep_stat_replay() TO pg_monitor;
GRANT EXECUTE ON FUNCTION lockstep_stat_priority() TO pg_monitor;
GRANT EXECUTE ON FUNCTION lockstep_stat_throttle() TO pg_monitor;
GRANT SELECT ON lockstep_stat_replay TO pg_monitor;
GRANT SELECT ON lockstep_stat_priority TO pg_monitor;
GRANT SELECT ON lockstep_stat_throttle TO pg_monitor;
