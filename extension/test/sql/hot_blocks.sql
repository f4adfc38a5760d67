--
-- lockstep_hot_blocks() lists the permanent blocks in shared buffers; lockstep_read_blocks()
-- reads some of this database. (On a standby: t/036_hot_blocks.pl.)
--
CREATE EXTENSION lockstep;

CREATE TABLE hot AS SELECT i, repeat('x', 500) AS t FROM generate_series(1, 1000) i;
CREATE INDEX hot_i ON hot (i);
CREATE UNLOGGED TABLE not_logged AS SELECT 1 AS i;
VACUUM hot;

-- what is listed of a relation, and what it has
CREATE FUNCTION pg_temp.listed(regclass) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(DISTINCT relblocknumber) FROM lockstep_hot_blocks()
    WHERE relfilenode = pg_relation_filenode($1) AND relforknumber = 0 AND usagecount > 0
          AND reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = 'pg_default')
          AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) $$;
CREATE FUNCTION pg_temp.blocks(regclass) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_relation_size($1) / current_setting('block_size')::int $$;
SELECT pg_temp.listed('hot') = pg_temp.blocks('hot') AS all_blocks;
SELECT pg_temp.listed('not_logged') AS unlogged;
SELECT count(*) > 0 AS visibility_map FROM lockstep_hot_blocks()
WHERE relfilenode = pg_relation_filenode('hot') AND relforknumber = 2;
SELECT count(*) > 0 AS shared_catalogs FROM lockstep_hot_blocks() WHERE reldatabase = 0;

-- what is there is read; what is not, is left out
CREATE FUNCTION pg_temp.reads(relation regclass, fork integer, blocks bigint[]) RETURNS integer LANGUAGE sql AS $$
    SELECT lockstep_read_blocks(1663, pg_relation_filenode(relation), fork, blocks) $$;
SELECT pg_temp.reads('hot', 0, '{0,1,2}') AS three, pg_temp.reads('hot_i', 0, '{1}') AS of_an_index,
       pg_temp.reads('hot', 2, '{0}') AS of_the_map, pg_temp.reads('hot', 0, '{0,4294967294}') AS one_of_two,
       pg_temp.reads('hot', 3, '{0}') AS no_such_fork, pg_temp.reads('not_logged', 0, '{0}') AS unlogged,
       pg_temp.reads('hot', 0, '{}') AS none, lockstep_read_blocks(1663, 4294967295, 0, '{0}') AS no_such_file,
       lockstep_read_blocks(1664, pg_relation_filenode('pg_database'), 0, '{0}') AS shared,
       -- as pg_class has it of a mapped catalog
       lockstep_read_blocks(1663, 0, 0, '{0}') AS zero;
-- 1024 are read, no more
SELECT pg_temp.reads('hot', 0, array_agg(i)) = pg_temp.blocks('hot') AS most FROM generate_series(0, 1023) i;
SELECT pg_temp.reads('hot', 0, array_agg(i)) FROM generate_series(0, 1024) i;
SELECT pg_temp.reads('hot', 0, '{0,null}');
SELECT pg_temp.reads('hot', 0, '{-1}');
SELECT pg_temp.reads('hot', 0, '{4294967295}');
SELECT pg_temp.reads('hot', 4, '{0}');
SELECT pg_temp.reads('hot', -1, '{0}');

-- for members of pg_monitor, also if it is granted to others
CREATE ROLE regress_lockstep_plain;
CREATE ROLE regress_lockstep_monitor IN ROLE pg_monitor;
SET ROLE regress_lockstep_monitor;
SELECT count(*) > 0 AS listed, lockstep_read_blocks(1663, 4294967295, 0, '{0}') AS read FROM lockstep_hot_blocks();
SET ROLE regress_lockstep_plain;
SELECT count(*) FROM lockstep_hot_blocks();
SELECT lockstep_read_blocks(1663, 4294967295, 0, '{0}');
RESET ROLE;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_lockstep_plain;
SET ROLE regress_lockstep_plain;
SELECT count(*) FROM lockstep_hot_blocks();
SELECT lockstep_read_blocks(1663, 4294967295, 0, '{0}');
RESET ROLE;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM regress_lockstep_plain;
DROP ROLE regress_lockstep_plain, regress_lockstep_monitor;
DROP TABLE hot, not_logged;
DROP EXTENSION lockstep;
