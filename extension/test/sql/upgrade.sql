--
-- ALTER EXTENSION lockstep UPDATE: this library serves the SQL of older versions,
-- and an updated extension has what a new one has.
--
CREATE TEMP VIEW objects AS
    SELECT pg_describe_object(classid, objid, objsubid) AS object,
           pg_get_functiondef(p.oid) AS definition, pg_get_viewdef(c.oid) AS query,
           coalesce(p.proacl, c.relacl)::text AS privileges,
           obj_description(objid, classid::regclass::text) AS comment
    FROM pg_depend
         LEFT JOIN pg_proc p ON classid = 'pg_proc'::regclass AND objid = p.oid
         LEFT JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid
    WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
          AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lockstep');

CREATE EXTENSION lockstep;
SELECT extversion FROM pg_extension WHERE extname = 'lockstep';
CREATE TEMP TABLE new_objects AS SELECT * FROM objects;
SELECT count(*) > 10 AS has_objects, count(definition) > 5 AS has_functions, count(query) > 2 AS has_views
FROM new_objects;
DROP EXTENSION lockstep;

--
-- 0.1: every function works
--
CREATE EXTENSION lockstep VERSION '0.1';
SELECT pg_typeof(lockstep_replay_token());
SELECT pg_current_wal_flush_lsn() AS flushed \gset
SELECT lockstep_replay_token() >= :'flushed' AS covers_what_is_flushed,
       lockstep_replay_token() <= pg_current_wal_insert_lsn() AS exists_already;
SELECT count(*) FROM lockstep_stat_replay, lockstep_stat_priority, lockstep_stat_throttle;
SELECT lockstep_stat_replay_reset(), lockstep_stat_priority_reset(), lockstep_stat_throttle_reset();
SELECT lockstep_flush_buffers() > 0 AS flushed;
\set SHOW_CONTEXT never
-- what a user's view keeps cannot be replaced, and that is said
CREATE VIEW uses_token AS SELECT lockstep_replay_token() AS token;
ALTER EXTENSION lockstep UPDATE;
SELECT token IS NOT NULL AS works_on FROM uses_token;
DROP VIEW uses_token;

--
-- updated
--
ALTER EXTENSION lockstep UPDATE;
SELECT extversion FROM pg_extension WHERE extname = 'lockstep';
SELECT pg_typeof(lockstep_replay_token());
(TABLE objects EXCEPT TABLE new_objects) UNION ALL (TABLE new_objects EXCEPT TABLE objects);
DROP EXTENSION lockstep;
-- each version there is leads to the newest
SELECT source, target, path FROM pg_extension_update_paths('lockstep')
WHERE source < target ORDER BY source, target;
