--
-- The lockstep.* settings: defaults with their units, refused values, and
-- which of them a session may set.
--
SELECT name, setting, unit, context, vartype, min_val, max_val, enumvals
FROM pg_settings WHERE name LIKE 'lockstep.%' ORDER BY name COLLATE "C";
-- every one says what it is for
SELECT name FROM pg_settings WHERE name LIKE 'lockstep.%' AND coalesce(short_desc, '') = '';

SHOW lockstep.enabled;
SHOW lockstep.replay_priority;
SHOW lockstep.priority_irreversible;
SHOW lockstep.read_throttle;
SHOW lockstep.read_throttle_lag;
SHOW lockstep.read_throttle_give_up;
SHOW lockstep.read_throttle_min;
SHOW lockstep.read_throttle_max;
SHOW lockstep.read_throttle_long_query;
SHOW lockstep.read_throttle_turn;
SHOW lockstep.read_throttle_timeout;
SHOW lockstep.wait_timeout;
SHOW lockstep.replay_look_ahead;
SHOW lockstep.replay_workers;
SHOW lockstep.replay_queue_size;
SHOW lockstep.replay_hot_standby;
SHOW lockstep.replay_min_backlog;
SHOW lockstep.replay_read_helpers;
SHOW lockstep.wal_segments_ahead;
SHOW lockstep.wait_for_lsn;
SHOW lockstep.report_token;
SHOW lockstep.replay_token;

--
-- what belongs to the server is not a session's to set
--
SET lockstep.enabled = off;
SET lockstep.replay_priority = off;
SET lockstep.priority_irreversible = on;
SET lockstep.read_throttle = off;
SET lockstep.read_throttle_lag = 0;
SET lockstep.read_throttle_give_up = 0;
SET lockstep.read_throttle_min = 2;
SET lockstep.read_throttle_max = 2;
SET lockstep.read_throttle_long_query = 0;
SET lockstep.read_throttle_turn = 0;
SET lockstep.replay_look_ahead = 0;
SET lockstep.replay_workers = 1;
SET lockstep.wal_segments_ahead = 0;
SET lockstep.proc_root = '/tmp';
SET lockstep.replay_token = '1/0/16B3748';
RESET lockstep.replay_token;
ALTER ROLE CURRENT_USER SET lockstep.replay_token = '1/0/16B3748';
ALTER ROLE CURRENT_USER SET lockstep.version = '1';
ALTER ROLE CURRENT_USER SET lockstep.proc_root = '/tmp';
ALTER ROLE CURRENT_USER SET lockstep.enabled = off;
ALTER DATABASE contrib_regression SET lockstep.read_throttle = off;
ALTER SYSTEM SET lockstep.version = '1';
SELECT set_config('lockstep.enabled', 'off', false);

--
-- what a session may set, in units
--
SET lockstep.read_throttle_timeout = '1.5s';
SHOW lockstep.read_throttle_timeout;
SET lockstep.wait_timeout = '2min';
SHOW lockstep.wait_timeout;
SET lockstep.wait_timeout = 250;
SHOW lockstep.wait_timeout;
BEGIN;
SET LOCAL lockstep.wait_timeout = 0;
SHOW lockstep.wait_timeout;
COMMIT;
SHOW lockstep.wait_timeout;
RESET lockstep.read_throttle_timeout;
RESET lockstep.wait_timeout;
SHOW lockstep.wait_timeout;

--
-- bad values; only the SQLSTATE, for the words differ between majors
--
\set VERBOSITY sqlstate
SET lockstep.read_throttle_timeout = -1;
SET lockstep.read_throttle_timeout = 'soon';
SET lockstep.read_throttle_timeout = '1 parsec';
SET lockstep.wait_timeout = -1;
SET lockstep.wait_timeout = 3000000000;
SET lockstep.wait_timeout = '';
SET lockstep.wait_for_lsn = 'soon';
ALTER SYSTEM SET lockstep.enabled = 'maybe';
ALTER SYSTEM SET lockstep.replay_priority = 2;
ALTER SYSTEM SET lockstep.priority_irreversible = 'never';
ALTER SYSTEM SET lockstep.read_throttle = 'true';
ALTER SYSTEM SET lockstep.read_throttle = 1;
ALTER SYSTEM SET lockstep.read_throttle_lag = -1;
ALTER SYSTEM SET lockstep.read_throttle_lag = '10MB';
ALTER SYSTEM SET lockstep.read_throttle_give_up = -1;
ALTER SYSTEM SET lockstep.read_throttle_min = 0;
ALTER SYSTEM SET lockstep.read_throttle_min = 262144;
ALTER SYSTEM SET lockstep.read_throttle_max = -1;
ALTER SYSTEM SET lockstep.read_throttle_max = 262144;
ALTER SYSTEM SET lockstep.read_throttle_long_query = -1;
ALTER SYSTEM SET lockstep.replay_look_ahead = 33;
ALTER SYSTEM SET lockstep.replay_workers = 17;
ALTER SYSTEM SET lockstep.replay_workers = -1;
ALTER SYSTEM SET lockstep.replay_workers = 'on';
ALTER SYSTEM SET lockstep.replay_hot_standby = 2;
ALTER SYSTEM SET lockstep.replay_hot_standby = 'always';
ALTER SYSTEM SET lockstep.replay_queue_size = '1kB';
ALTER SYSTEM SET lockstep.replay_min_backlog = -1;
ALTER SYSTEM SET lockstep.wal_segments_ahead = 65;
ALTER SYSTEM SET lockstep.wait_for_lsn = '1/';
ALTER SYSTEM SET lockstep.report_token = 'soon';
ALTER SYSTEM SET lockstep.replay_token = '1/0/16B3748';
\set VERBOSITY default
-- these say how to put it right
ALTER SYSTEM SET lockstep.read_throttle = 'maybe';
SET lockstep.wait_for_lsn = 'soon';
-- and none was kept
SELECT count(*) FROM pg_file_settings WHERE name LIKE 'lockstep.%';

--
-- a misspelt name is refused instead of doing nothing
--
SET lockstep.read_throtle = on;
SELECT set_config('lockstep.replay_workers_', '1', false);
SHOW lockstep.read_throtle;

-- the setting of the tests is not listed
SELECT count(*) FROM pg_settings WHERE name = 'lockstep.proc_root';
