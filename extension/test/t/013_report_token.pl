# lockstep.report_token: the server sends the token of each transaction that wrote
# with its answer, and nothing for any other.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_primary(conf => q{
max_prepared_transactions = 2
max_worker_processes = 16
});
my $standby = new_standby($primary, conf => q{lockstep.wait_timeout = 0});
my $admin   = LockstepSession->new($primary);
$admin->value($_)
  for 'CREATE TABLE written (i int)',
  'GRANT INSERT, UPDATE, DELETE ON written TO app',
  'CREATE TABLE large AS SELECT i FROM generate_series(1, 50000) i',
  q{CREATE PROCEDURE writes() LANGUAGE plpgsql AS $$
	BEGIN FOR i IN 1..5 LOOP INSERT INTO written VALUES (12); COMMIT; END LOOP; END $$},
  # or a query could prune pages, which is a write
  'VACUUM';

my $setting = 'lockstep.replay_token';

sub app { return LockstepSession->new($primary, user => 'app', @_); }

my $reader = LockstepSession->new($standby, user => 'app');
my $session;
my $token = '';

# The answer comes with a token, which covers all that is written.
sub reported
{
	my ($reply, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $new = $reply->{reported}{$setting} // '';

	like($new, qr{^1/[0-9A-F]+/[0-9A-F]+$}, "$name: reported") or return;
	isnt($new, $token, "$name: a new one");
	$token = $new;
	is($session->value("SHOW $setting"), $token, "$name: SHOW says the same");
	succeeds($reader->query("SET lockstep.wait_for_lsn = '$token'"), "$name: the standby comes to it");
	# another snapshot of the primary than the last one of this session
	return is($reader->value('SELECT count(*) FROM written'), $admin->value('SELECT count(*) FROM written'),
		"$name: and shows it");
}

sub silent
{
	my ($reply, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($reply->{reported}{$setting}, undef, "$name: nothing is reported");
}

# ---- Off ----

$session = app();
is($session->reported_at_start->{$setting}, '', 'a client sees at once that the server can report');
silent($session->query('INSERT INTO written VALUES (1)'), 'off by default');
is($session->value("SHOW $setting"), '', 'and no token is shown');

# ---- Single statements and transactions ----

silent($session->query('BEGIN'), 'BEGIN');
silent($session->query('SET lockstep.report_token = on'), 'switched on in a transaction');
silent($session->query('INSERT INTO written VALUES (2)'), 'before the commit');
reported($session->query('COMMIT'), 'COMMIT');

for my $synchronous_commit ('on', 'off')
{
	$session->value("SET synchronous_commit = $synchronous_commit");
	reported($session->query("INSERT INTO written VALUES ($_)"),
		"insert $_, synchronous_commit = $synchronous_commit") for 3 .. 5;
}
$session->value('RESET synchronous_commit');
silent($session->query('SELECT 1'), 'a query');
silent($session->query("SHOW $setting"), 'SHOW');
silent($session->query('UPDATE written SET i = 0 WHERE false'), 'an update of no row');
silent($session->query('INSERT INTO written SELECT 1/0'), 'a statement that fails');
for my $end ('ROLLBACK', 'COMMIT')
{
	silent($session->query('BEGIN'), 'BEGIN');
	silent($session->query('INSERT INTO written VALUES (6)'), 'a write');
	silent($session->query('SELECT 1/0'), 'an error') if $end eq 'COMMIT';
	silent($session->query($end), "rolled back by $end");
}
$session->value('BEGIN');
$session->value('INSERT INTO written VALUES (7)');
$session->value('SAVEPOINT s');
$session->value('INSERT INTO written VALUES (7)');
$session->value('ROLLBACK TO s');
reported($session->query('COMMIT'), 'a transaction of which a part is rolled back');

# ---- Several statements in one answer ----

my $write = 'INSERT INTO written VALUES (8)';
my @together = (
	[ 'a string of statements', "$write; $write" ],
	[ 'two transactions in a string', "BEGIN; $write; COMMIT; $write" ],
	[ 'COMMIT AND CHAIN', "BEGIN; $write; COMMIT AND CHAIN; $write; COMMIT" ],
	[ 'a commit and then an error', "BEGIN; $write; COMMIT; SELECT 1/0" ],
	[ 'DO with several commits', "DO \$\$ BEGIN $write; COMMIT; $write; COMMIT; END \$\$" ],
	[ 'DO that fails after a commit', "DO \$\$ BEGIN $write; COMMIT; $write; PERFORM 1/0; END \$\$" ],
	[ 'DO that rolls back after a commit', "DO \$\$ BEGIN $write; COMMIT; $write; ROLLBACK; END \$\$" ],
	[ 'CALL with several commits', 'CALL writes()' ]);
reported($session->query($_->[1]), $_->[0]) for @together;

$session->send_unnamed('INSERT INTO written VALUES ($1)', 13);
reported($session->result, 'the extended protocol');
$session->send_pipeline('INSERT INTO written VALUES (14)', 'INSERT INTO written VALUES (14)', 'SELECT 1');
reported($session->result, 'a pipeline');
$session->send_pipeline(map { ('BEGIN', "INSERT INTO written VALUES ($_)", 'COMMIT', 'SELECT 1') } 15 .. 17);
reported($session->result, 'a pipeline of several transactions');
$session->send_pipeline('SELECT 1', 'SELECT 2');
silent($session->result, 'a pipeline of queries');

# ---- Prepared transactions ----

$session->value('BEGIN');
$session->value('INSERT INTO written VALUES (18)');
silent($session->query("PREPARE TRANSACTION 'p'"), 'PREPARE TRANSACTION, after which nothing is visible');
my $other = $session;
$session = app();
$session->value('SET lockstep.report_token = on');
reported($session->query("COMMIT PREPARED 'p'"), 'COMMIT PREPARED in another session');
silent($other->query('SELECT 1'), 'which the first one does not notice');

# ---- Parallel workers ----

$session = LockstepSession->new($primary);
$session->value($_)
  for 'SET lockstep.report_token = on', 'SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0',
  'SET min_parallel_table_scan_size = 0';
my $explained = $session->query('EXPLAIN CREATE TABLE counted AS SELECT count(*) FROM large');
my $plan = join "\n", map { $_->[0] } @{ $explained->{rows} };
like($plan, qr/Workers Planned/, 'a statement with parallel workers');
reported($session->query('CREATE TABLE counted AS SELECT count(*) FROM large'), 'parallel workers');

# ---- Walsender, and processes without a client ----

$session = LockstepSession->new($primary, replication => 'database');
is($session->reported_at_start->{$setting}, '', 'a walsender has the setting, too');
$session->value('SET lockstep.report_token = on');
reported($session->query('INSERT INTO written VALUES (19)'), 'SQL through a walsender');
silent($session->query('IDENTIFY_SYSTEM'), 'a replication command');

set_and_reload($primary, 'lockstep.report_token' => 'on', autovacuum => 'on', autovacuum_naptime => 1);
wait_for_value($admin, 'SHOW lockstep.report_token', 'on', 'on for the whole server');
$admin->value(q{CREATE TABLE vacuumed (i int)
	WITH (autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0)});
$admin->value('INSERT INTO vacuumed VALUES (1), (2)');
wait_until($admin, q{SELECT autovacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 'vacuumed'},
	'a background process has written');
set_and_reload($primary, 'lockstep.report_token' => 'off', autovacuum => 'off');
wait_for_value($admin, 'SHOW lockstep.report_token', 'off', 'off again');

# ---- Switched off and on ----

$session = app();
$session->value('SET lockstep.report_token = on');
reported($session->query('INSERT INTO written VALUES (20)'), 'on');
is($session->query('SET lockstep.report_token = off')->{reported}{$setting}, '',
	'switched off: the token is withdrawn');
silent($session->query('INSERT INTO written VALUES (21)'), 'off');
reported($session->query('SET lockstep.report_token = on'), 'switched on: what was written meanwhile');
is($session->query('DISCARD ALL')->{reported}{$setting}, '', 'DISCARD ALL: the token is withdrawn');
$session->value('BEGIN');
$session->value('SET LOCAL lockstep.report_token = on');
$session->value('INSERT INTO written VALUES (22)');
reported($session->query('COMMIT'), 'on for one transaction');
$admin->value('ALTER ROLE app SET lockstep.report_token = on');
$session = app();
reported($session->query('INSERT INTO written VALUES (24)'), 'on for a role');

# ---- A standby, and after its promotion ----

my $on_standby = LockstepSession->new($standby, user => 'app', options => '-c lockstep.report_token=on');
is($on_standby->reported_at_start->{$setting}, '', 'a standby can report');
silent($on_standby->query('SELECT count(*) FROM written'), 'and has nothing to');
$primary->stop;
$standby->promote;
like($on_standby->query('INSERT INTO written VALUES (25)')->{reported}{$setting}, qr{^2/},
	'after promotion with the new timeline');

done_testing();
