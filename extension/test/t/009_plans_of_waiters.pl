# Queries that wait at the gate with a plan made earlier, while replay changes
# what the plan stands on: an index that is replaced, a privilege that is taken
# away. With one place only, which a query that does nothing but compute occupies.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => q{
lockstep.read_throttle_max = 1
lockstep.read_throttle_long_query = 0
max_standby_streaming_delay = -1
});
$on_primary->value($_) for 'CREATE TABLE one (i int)', 'CREATE INDEX one_i ON one (i)',
  'CREATE TABLE parts (i int, j int) PARTITION BY RANGE (i)',
  'CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)',
  'CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)',
  'CREATE INDEX parts_1_i ON parts_1 (i)', 'CREATE INDEX parts_2_i ON parts_2 (i)',
  'CREATE INDEX parts_2_j ON parts_2 (j)',
  'INSERT INTO one SELECT g FROM generate_series(1, 5) g',
  'INSERT INTO parts SELECT g, g FROM generate_series(1, 15) g';
# A transaction with a number, and without a snapshot, keeps the primary from
# removing row versions. Replay of that would wait for the query that occupies the place.
my $keeper = LockstepSession->new($primary);
$keeper->value($_) for 'BEGIN', 'SELECT pg_current_xact_id()';
catch_up($on_primary, $admin);

# A session whose plans are made once, and scan indexes.
sub app
{
	my ($user) = @_;
	return LockstepSession->new($standby, user => $user // 'app', options => join ' ',
		map { "-c $_" } qw(plan_cache_mode=force_generic_plan enable_seqscan=off));
}

sub occupy
{
	my ($user) = @_;
	my $session = app($user);
	$session->send($FOREVER);
	gate_holds($admin, 1, 0, 'the place is occupied');
	return $session;
}

sub release
{
	my ($session) = @_;
	$session->cancel;
	$session->result;
	$session->close;
	return;
}

sub returns
{
	my ($reply, $rows, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	succeeds($reply, $name);
	return is_deeply($reply->{rows}, $rows, 'and has its rows');
}

sub index_locks
{
	my ($session) = @_;
	return $admin->value(q{
		SELECT string_agg(relation::regclass::text, ' ' ORDER BY relation::regclass::text COLLATE "C")
		FROM pg_locks JOIN pg_class c ON c.oid = relation
		WHERE relkind = 'i' AND mode = 'AccessShareLock' AND pid = } . $session->pid);
}

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');

# ---- Indexes ----

# Bind locks the tables of a plan made earlier, not its indexes.
my @plans = (
	[ 'an index scan', 'one_i', 'SELECT i FROM one WHERE i = 3', [ [3] ], 'one_i' ],
	[ 'a bitmap scan', 'one_i', 'SELECT i FROM one WHERE i = 3 OR i = 4 ORDER BY i', [ [3], [4] ], 'one_i' ],
	[ 'a subquery', 'one_i', 'SELECT (SELECT max(i) FROM one), (SELECT i FROM one WHERE i = o.i) FROM one o WHERE i = 2', [ [ 5, 2 ] ], 'one_i' ],
	[ 'a common table expression', 'one_i', 'WITH w AS MATERIALIZED (SELECT i FROM one WHERE i < 3) SELECT count(*) FROM w', [ [2] ], 'one_i' ],
	[ 'partitions', 'parts_2_i', 'SELECT count(*) FROM parts WHERE i > 8', [ [7] ], 'parts_1_i parts_2_i' ],
	[ 'several indexes', 'parts_2_j', 'SELECT count(*) FROM parts_2 WHERE i = 12 OR j = 13', [ [2] ], 'parts_2_i parts_2_j' ],
	[ 'a set operation', 'parts_2_j', 'SELECT i FROM one WHERE i = 1 UNION ALL (SELECT j FROM parts_2 WHERE j = 11 LIMIT 1)', [ [1], [11] ], 'one_i parts_2_j' ]);
for my $plan (@plans)
{
	my ($what, $index, $sql, $rows, $locked) = @$plan;
	my $app = app();
	$app->value("PREPARE q AS $sql");
	$app->send_prepared('q');
	returns($app->result, $rows, "$what is executed once");

	my $holder = occupy();
	$app->send_prepared('q');
	waits_at_gate($admin, $app, 'it waits with the plan made then');
	is(index_locks($app), $locked, 'and has the indexes of the plan locked');
	# replay waits for that lock, so the gate opens
	$on_primary->value("REINDEX INDEX CONCURRENTLY $index");
	catch_up($on_primary, $admin);
	release($holder);
	returns($app->result, $rows, 'it goes on although replay wants to drop one of them');
	$app->send_prepared('q');
	returns($app->result, $rows, 'with the next plan, too');
	gate_holds($admin, 0, 0, 'nothing is left at the gate');
	$app->close;
}

# A plan with more indexes than a session may lock does not wait: it would take
# the room for locks from others. Planning in the same transaction has locked them anyway.
my $partitions = $admin->value('SHOW max_locks_per_transaction') + 1;
$on_primary->value($_) for 'CREATE TABLE many (i int, j int) PARTITION BY RANGE (i)',
  map({ "CREATE TABLE many_$_ PARTITION OF many FOR VALUES FROM ($_) TO ($_ + 1)" } 1 .. $partitions),
  'CREATE INDEX many_j ON many (j)', 'INSERT INTO many VALUES (1, 1), (2, 2)';
catch_up($on_primary, $admin);
{
	my $app = app();
	my $sql = 'SELECT count(*) FROM many WHERE j > 0';
	$app->value("PREPARE q AS $sql");
	$app->send_prepared('q');
	returns($app->result, [ [2] ], 'a query of many partitions is executed once');
	my $holder = occupy();
	$app->send_prepared('q');
	returns($app->result, [ [2] ], 'it does not wait with the plan made then');
	$app->send($sql);
	waits_at_gate($admin, $app, 'but with a plan made for it');
	release($holder);
	returns($app->result, [ [2] ], 'then it goes on');
	$app->close;
}

# An index that nobody keeps up to date any more: rows that came since are not in
# it. The primary waits for lockers of the table between the steps of the drop.
my $dying = 'SELECT count(*) FROM dying WHERE i =';
my %way = (
	'a prepared statement'                 => sub { $_[0]->send_prepared('q', 7) },
	'a statement without a name'           => sub { $_[0]->send_unnamed("$dying \$1", 7) },
	'a simple query'                       => sub { $_[0]->send("$dying 7") },
	'the second of two queries in a string' => sub { $_[0]->send("RESET work_mem; $dying 7;") });
for my $way (sort keys %way)
{
	$on_primary->value($_) for 'DROP TABLE IF EXISTS dying', 'CREATE TABLE dying (i int)', 'CREATE INDEX dying_i ON dying (i)';
	catch_up($on_primary, $admin);
	my $app = app();
	$app->value("PREPARE q AS $dying \$1");
	my $send = sub { $way{$way}->($app) };
	$send->();
	returns($app->result, [ [0] ], "$way is executed once");
	my $holder = occupy();
	$send->();
	waits_at_gate($admin, $app, 'it waits');

	my @locker = map { LockstepSession->new($primary) } 1 .. 2;
	my $dropper = LockstepSession->new($primary);
	$locker[0]->value($_) for 'BEGIN', 'LOCK TABLE dying IN ACCESS SHARE MODE';
	$dropper->send('DROP INDEX CONCURRENTLY dying_i');
	wait_until($on_primary, q{SELECT NOT indisvalid FROM pg_index WHERE indexrelid = 'dying_i'::regclass}, 'its index is no longer valid');
	$locker[1]->value($_) for 'BEGIN', 'LOCK TABLE dying IN ACCESS SHARE MODE';
	$locker[0]->value('COMMIT');
	wait_until($on_primary, q{SELECT NOT indislive FROM pg_index WHERE indexrelid = 'dying_i'::regclass}, 'nor kept up to date');
	$on_primary->value('INSERT INTO dying VALUES (7)');
	catch_up($on_primary, $admin);
	release($holder);
	returns($app->result, [ [1] ], 'the query finds what is not in the index');
	$locker[1]->value('COMMIT');
	$dropper->result;
	$app->close;
}

# ---- Functions ----

# A query holds no lock on the functions that it calls.
$on_primary->value(q{CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'});
my $call = 'SELECT f(i) FROM one WHERE i =';
%way = (
	'a prepared statement'       => sub { $_[0]->send_prepared('q', 3) },
	'a statement without a name' => sub { $_[0]->send_unnamed("$call \$1", 3) },
	'a simple query'             => sub { $_[0]->send("$call 3") });
catch_up($on_primary, $admin);
for my $way (sort keys %way)
{
	my $app = app();
	$app->value("PREPARE q AS $call \$1");
	my $send = sub { $way{$way}->($app) };
	$send->();
	returns($app->result, [ [3] ], "$way calls a function");
	my $holder = occupy();
	$send->();
	waits_at_gate($admin, $app, 'it waits');
	$on_primary->value($_) for 'BEGIN', 'DROP FUNCTION f(int)',
	  q{CREATE FUNCTION f(int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'}, 'COMMIT';
	catch_up($on_primary, $admin);
	release($holder);
	returns($app->result, [ [3] ], 'the function was replaced by one of the same name');
	$app->close;
}

# A function that the planner has evaluated, or put the body of in its place.
for my $language ('sql', 'plpgsql')
{
	my $body = sub { $language eq 'sql' ? "SELECT $_[0]" : "BEGIN RETURN $_[0]; END" };
	my $make = sub { "CREATE OR REPLACE FUNCTION constant() RETURNS int IMMUTABLE LANGUAGE $language AS '" . $body->($_[0]) . q{'} };
	$on_primary->value($make->(1));
	catch_up($on_primary, $admin);
	my $app = app();
	my $holder = occupy();
	$app->send('SELECT constant()');
	waits_at_gate($admin, $app, "a query with an immutable function in $language waits");
	$on_primary->value($make->(2));
	catch_up($on_primary, $admin);
	release($holder);
	returns($app->result, [ [2] ], 'it returns what the function returns now');
	$app->close;
}

# A simple query is told its columns once it executes.
{
	my $app = app();
	my $holder = occupy();
	$app->send("$call 3");
	waits_at_gate($admin, $app, 'a query waits');
	$on_primary->value($_) for 'BEGIN', 'DROP FUNCTION f(int)',
	  q{CREATE FUNCTION f(int) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN concat($1, $1); END'}, 'COMMIT';
	catch_up($on_primary, $admin);
	release($holder);
	returns($app->result, [ [33] ], 'its columns may change');
	$app->close;
}

# What the text means may depend on an earlier statement of its string. A query
# that could not be planned again from its text does not wait. 19 only takes "on".
{
	my $app = app();
	my $strings = $admin->value('SHOW server_version_num') >= 190000 ? 'on' : 'off';
	my $holder = occupy();
	is($app->value(qq{SET standard_conforming_strings = $strings; } . q{SELECT count(*) || '\\\\' FROM one}), '5\\\\', 'such a query passes');
	release($holder);
}

# ---- Privileges ----

# Its user has the place: a query of another user would not wait.

my $app = LockstepSession->new($standby, user => 'stranger');
$on_primary->value('GRANT SELECT ON one TO stranger');
catch_up($on_primary, $admin);
my $holder = occupy('stranger');
$app->send('SELECT count(*) FROM one');
waits_at_gate($admin, $app, 'a session that may read waits');
$on_primary->value('REVOKE SELECT ON one FROM stranger');
catch_up($on_primary, $admin);
release($holder);
refused($app->result, '42501', qr/permission denied for table one/, 'it may no more when it goes on');
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# The right to use a schema is checked before there is a plan.
$on_primary->value($_) for 'CREATE SCHEMA hidden', 'CREATE TABLE hidden.one (i int)',
  'GRANT USAGE ON SCHEMA hidden TO stranger', 'GRANT SELECT ON hidden.one TO stranger';
catch_up($on_primary, $admin);
$holder = occupy('stranger');
$app->send('SELECT count(*) FROM hidden.one');
waits_at_gate($admin, $app, 'a session that may use a schema waits');
$on_primary->value('REVOKE USAGE ON SCHEMA hidden FROM stranger');
catch_up($on_primary, $admin);
release($holder);
refused($app->result, '42501', qr/permission denied for schema hidden/, 'it may no more when it goes on');

# Which policies of row security apply is part of the plan.
my %taken_away = (
	'membership in a role' => [ 'GRANT insiders TO stranger', 'REVOKE insiders FROM stranger' ],
	'BYPASSRLS'            => [ 'ALTER ROLE stranger BYPASSRLS', 'ALTER ROLE stranger NOBYPASSRLS' ]);
$on_primary->value($_) for 'CREATE ROLE insiders', 'CREATE TABLE secret (i int)', 'INSERT INTO secret VALUES (1)',
  'GRANT SELECT ON secret TO stranger', 'ALTER TABLE secret ENABLE ROW LEVEL SECURITY',
  'CREATE POLICY p ON secret TO insiders USING (true)';
for my $right (sort keys %taken_away)
{
	my ($give, $take) = @{ $taken_away{$right} };
	$on_primary->value($give);
	catch_up($on_primary, $admin);
	for my $way (qw(send send_unnamed))
	{
		is($app->value('SELECT count(*) FROM secret'), 1, "with $right it sees a row");
		$holder = occupy('stranger');
		$app->$way('SELECT i FROM secret');
		waits_at_gate($admin, $app, 'it waits');
		$on_primary->value($take);
		catch_up($on_primary, $admin);
		release($holder);
		returns($app->result, [], 'and sees it no more after that was taken away');
		$on_primary->value($give);
		catch_up($on_primary, $admin);
	}
	$on_primary->value($take);
}

# ---- What a plan needs by number, and does not name ----

my %needed = (
	type         => [ q{CREATE TYPE gone AS ENUM ('a')}, q{SELECT count(*) FROM one WHERE i::text::gone = 'a'}, 'DROP TYPE gone' ],
	collation    => [ 'CREATE COLLATION gone FROM "C"', 'SELECT i FROM one ORDER BY i::text COLLATE gone', 'DROP COLLATION gone' ],
	'text search configuration' => [ 'CREATE TEXT SEARCH CONFIGURATION gone (COPY = simple)',
		q{SELECT to_tsvector('gone', i::text) FROM one}, 'DROP TEXT SEARCH CONFIGURATION gone' ]);
$app = app();
for my $what (sort keys %needed)
{
	my ($create, $query, $drop) = @{ $needed{$what} };
	$on_primary->value($create);
	catch_up($on_primary, $admin);
	$holder = occupy();
	$app->send($query);
	waits_at_gate($admin, $app, "a query with a $what waits");
	$on_primary->value($drop);
	catch_up($on_primary, $admin);
	release($holder);
	refused($app->result, '42704', qr/"gone".* does not exist/, "the $what is missed as if the query came now");
}
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# ---- Partitions that are attached ----

# For that the default partition is locked, which a query has that waits: replay goes on, since the query does.
$on_primary->value($_) for 'CREATE TABLE grows (i int) PARTITION BY RANGE (i)', 'CREATE TABLE grows_d PARTITION OF grows DEFAULT',
  'CREATE TABLE grows_0 PARTITION OF grows FOR VALUES FROM (0) TO (10)', 'INSERT INTO grows SELECT generate_series(0, 9)';
catch_up($on_primary, $admin);
my $tries = $ENV{LOCKSTEP_TEST_TRIES} || 5;
my $worst = 0;
$holder = occupy();
for my $try (1 .. $tries)
{
	my ($from, $to) = ($try * 10, $try * 10 + 10);
	my $app = app();
	$on_primary->value($_) for "CREATE TABLE grows_$try (i int)", "INSERT INTO grows_$try SELECT generate_series($from, $to - 1)";
	catch_up($on_primary, $admin);
	$app->send('SELECT count(*), (SELECT count(*) FROM generate_series(1, 200000)) FROM grows');
	# every other one may not have come to the gate
	waits_at_gate($admin, $app, 'a query of all partitions waits') if $try % 2;
	$on_primary->value("ALTER TABLE grows ATTACH PARTITION grows_$try FOR VALUES FROM ($from) TO ($to)");
	my $began = time;
	catch_up($on_primary, $admin);
	my $took = time - $began;
	$worst = $took if $took > $worst;
	if ($try % 2)
	{
		is($app->result->{rows}[0][0], $from, 'it goes on for that, with the rows from before');
	}
	else
	{
		# One that comes to the gate after that waits as long as the place is occupied. A request that comes before
		# it has begun cancels nothing.
		wait_until(undef, sub { return 1 unless $app->busy; $app->cancel; 0 }, 'it has ended, or is cancelled');
	}
	$app->close;
}
note sprintf 'replay of an attached partition was seen after %.2f s at most, in %d tries', $worst, $tries;
release($holder);

done_testing();
