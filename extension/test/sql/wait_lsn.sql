--
-- SET lockstep.wait_for_lsn where there is nothing to wait for: malformed
-- positions, a primary, and the places where only the value is assigned.
-- (What it does on a standby: t/005_wait_for_lsn.pl.)
--

CREATE EXTENSION lockstep;

--
-- neither a token nor a WAL position
--
SET lockstep.wait_for_lsn = 'soon';
SET lockstep.wait_for_lsn = '0';
SET lockstep.wait_for_lsn = '/';
SET lockstep.wait_for_lsn = '0/';
SET lockstep.wait_for_lsn = '/16B3748';
SET lockstep.wait_for_lsn = '0/16B3748/0';
SET lockstep.wait_for_lsn = '0/16B374G';
SET lockstep.wait_for_lsn = '0x0/16B3748';
SET lockstep.wait_for_lsn = '-1/16B3748';
SET lockstep.wait_for_lsn = '0/123456789';
SET lockstep.wait_for_lsn = '123456789/0';
SET lockstep.wait_for_lsn = ' 0/16B3748';
SET lockstep.wait_for_lsn = '0/16B3748 ';
SET lockstep.wait_for_lsn = '0 / 16B3748';
SET lockstep.wait_for_lsn = '1/0/';
SET lockstep.wait_for_lsn = '1//16B3748';
SET lockstep.wait_for_lsn = '/0/16B3748';
SET lockstep.wait_for_lsn = 'A/0/16B3748';
SET lockstep.wait_for_lsn = '-1/0/16B3748';
SET lockstep.wait_for_lsn = ' 1/0/16B3748';
SET lockstep.wait_for_lsn = '1 /0/16B3748';
SET lockstep.wait_for_lsn = '4294967296/0/16B3748';
SET lockstep.wait_for_lsn = '00000000001/0/16B3748';
SET lockstep.wait_for_lsn = '1/0/16B3748/0';
SET lockstep.wait_for_lsn = 23803720;
SET lockstep.wait_for_lsn = '0/1', '0/2';
SHOW lockstep.wait_for_lsn;

--
-- no position: nothing to wait for, on any server
--
SET lockstep.wait_for_lsn = '';
SET lockstep.wait_for_lsn TO DEFAULT;
RESET lockstep.wait_for_lsn;
RESET ALL;
SHOW lockstep.wait_for_lsn;

--
-- a primary has nothing to wait for either, and says so
--
SET lockstep.wait_for_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
SET lockstep.wait_for_lsn = 'ffffffff/FFFFFFFF';
SET SESSION lockstep.wait_for_lsn TO '00000000/0000000a';
BEGIN;
SET LOCAL lockstep.wait_for_lsn = '0/1';
ROLLBACK;
-- a refused position is not kept
SHOW lockstep.wait_for_lsn;

--
-- a token says whether this primary has the write
--
SELECT lockstep_replay_token() AS token \gset
SET lockstep.wait_for_lsn = :'token';
SELECT current_setting('lockstep.wait_for_lsn') = :'token' AS kept;
SET lockstep.wait_for_lsn = '1/0/1000028';
SET lockstep.wait_for_lsn = '0000000001/00000000/01000028';
RESET lockstep.wait_for_lsn;
\set VERBOSITY terse
-- of WAL that is not there: lost in a crash
SET lockstep.wait_for_lsn = '1/FFFFFFFF/0';
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
-- of a timeline that this server will never have
SET lockstep.wait_for_lsn = '2/0/1000028';
SET lockstep.wait_for_lsn = '4294967295/0/1000028';
\echo :LAST_ERROR_SQLSTATE
SHOW lockstep.wait_for_lsn;

--
-- after a query of the same transaction it would wait with a snapshot or locks
--
BEGIN;
SELECT 1;
SET lockstep.wait_for_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
SET lockstep.wait_for_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
LOCK TABLE pg_class IN ACCESS SHARE MODE;
SET LOCAL lockstep.wait_for_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- RESET does not wait, so it may come at any time
BEGIN;
SELECT 1;
RESET lockstep.wait_for_lsn;
SET lockstep.wait_for_lsn = '';
COMMIT;

--
-- not the first of the statements sent together, or inside another
--
\set SHOW_CONTEXT never
SELECT 1 \; SET lockstep.wait_for_lsn = '0/1';
\echo :LAST_ERROR_SQLSTATE
-- the first one holds no snapshot yet, so it gets as far as if sent alone
SET lockstep.wait_for_lsn = '0/1' \; SELECT 1;
\echo :LAST_ERROR_SQLSTATE
DO $$ BEGIN SET lockstep.wait_for_lsn = '0/1'; END $$;
\echo :LAST_ERROR_SQLSTATE
CREATE FUNCTION pg_temp.waits() RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN SET LOCAL lockstep.wait_for_lsn = '0/1'; END $$;
SELECT pg_temp.waits();
\echo :LAST_ERROR_SQLSTATE
CREATE FUNCTION pg_temp.waits_sql() RETURNS void LANGUAGE sql AS
    $$ SET lockstep.wait_for_lsn = '0/1' $$;
SELECT pg_temp.waits_sql();
\echo :LAST_ERROR_SQLSTATE
CREATE PROCEDURE pg_temp.waits_between() LANGUAGE plpgsql AS
    $$ BEGIN COMMIT; SET lockstep.wait_for_lsn = '0/1'; END $$;
CALL pg_temp.waits_between();
\echo :LAST_ERROR_SQLSTATE

--
-- what only assigns: no error on a primary either
--
SELECT set_config('lockstep.wait_for_lsn', 'A/1', false);
SHOW lockstep.wait_for_lsn;
SELECT set_config('lockstep.wait_for_lsn', '7/A/28', false);
BEGIN;
SELECT set_config('lockstep.wait_for_lsn', 'B/1', true);
ROLLBACK;
SHOW lockstep.wait_for_lsn;
SELECT set_config('lockstep.wait_for_lsn', 'B/', false);

--
-- what would be kept, and never waited for
--
CREATE FUNCTION pg_temp.reads() RETURNS text LANGUAGE sql
    SET lockstep.wait_for_lsn = '1/0/1' AS $$ SELECT current_setting('lockstep.wait_for_lsn') $$;
ALTER ROLE CURRENT_USER SET lockstep.wait_for_lsn = '1/0/1';
ALTER DATABASE contrib_regression SET lockstep.wait_for_lsn = '1/0/1';
ALTER SYSTEM SET lockstep.wait_for_lsn = '1/0/1';
-- to be without it is always allowed
ALTER ROLE CURRENT_USER RESET lockstep.wait_for_lsn;
CREATE FUNCTION pg_temp.reads() RETURNS text LANGUAGE sql
    SET lockstep.wait_for_lsn FROM CURRENT AS $$ SELECT current_setting('lockstep.wait_for_lsn') $$;
-- a token that was cut
SET lockstep.wait_for_lsn = '1/0';
SET lockstep.wait_for_lsn = '1/0/16B374';
DROP EXTENSION lockstep;
