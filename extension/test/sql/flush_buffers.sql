--
-- lockstep_flush_buffers(): the file of a table holds what was changed in
-- memory, without a checkpoint; superusers only. (On a paused standby, without
-- the library preloaded: crates/verify/tests/verify/oracle.)
--
CREATE EXTENSION lockstep;

CREATE TABLE written_out (t text);
INSERT INTO written_out VALUES ('a mark to look for');
SELECT lockstep_flush_buffers() = (SELECT count(*) FROM pg_database) AS all_databases;
SELECT position('a mark to look for'::bytea IN
                pg_read_binary_file(pg_relation_filepath('written_out'))) > 0 AS in_the_file;
-- the second time there is nothing left to do
SELECT lockstep_flush_buffers() > 0 AS again;

CREATE ROLE no_superuser;
SET ROLE no_superuser;
SELECT lockstep_flush_buffers();
RESET ROLE;
-- not even when it is granted
GRANT EXECUTE ON FUNCTION lockstep_flush_buffers() TO no_superuser;
SET ROLE no_superuser;
SELECT lockstep_flush_buffers();
RESET ROLE;
REVOKE ALL ON FUNCTION lockstep_flush_buffers() FROM no_superuser;
DROP ROLE no_superuser;
DROP TABLE written_out;
DROP EXTENSION lockstep;
