# The gate of the read throttle: who waits, who does not, and every way out.
# With one place only (lockstep.read_throttle_max = 1), which a query that does
# nothing but compute occupies.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => q{
lockstep.read_throttle_max = 1
lockstep.read_throttle_long_query = 0
});
$on_primary->value($_) for 'CREATE TABLE counted AS SELECT i FROM generate_series(1, 10) i',
  q{CREATE FUNCTION nested() RETURNS bigint LANGUAGE plpgsql AS
    'DECLARE n bigint := 0; BEGIN FOR k IN 1..3 LOOP n := n + (SELECT count(*) FROM counted); END LOOP; RETURN n; END'},
  q{CREATE FUNCTION opens() RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    'DECLARE c CURSOR FOR SELECT i FROM counted; BEGIN OPEN c; CLOSE c; RETURN 1; END'};
catch_up($on_primary, $admin);

sub app { return LockstepSession->new($standby, user => 'app'); }

my $count = 'SELECT count(*) FROM counted';

# Takes the one place, with a session that must not be let in by chance.
sub occupy
{
	my $session = app();
	$session->send($FOREVER);
	gate_holds($admin, 1, 0, 'the place is occupied');
	return $session;
}

sub release
{
	my ($session) = @_;
	$session->cancel;
	refused($session->result, '57014', qr/user request/, 'the place is given up');
	$session->close;
	return;
}

sub stat_of { return $admin->value("SELECT $_[0] FROM lockstep_stat_throttle"); }

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');
is(app()->value($count), 10, 'a query passes while there is room');

# ---- One waits ----

my $holder = occupy();
like($admin->value('SELECT backend_xmin FROM pg_stat_activity WHERE pid = ' . $holder->pid) // 'null',
	qr/^\d+$/, 'a query that executes does have a backend_xmin');
my $app = app();
$app->send($count);
waits_at_gate($admin, $app, 'a second query waits, without a backend_xmin');
gate_holds($admin, 1, 1, 'the view shows it waiting');
is(stat_of('waits'), 1, 'the wait is counted');
# the session keeps the lock, so no other can change the table meanwhile
is($admin->value(q{SELECT mode FROM pg_locks WHERE relation = 'counted'::regclass AND pid = } . $app->pid),
	'AccessShareLock', 'it keeps the lock on its table');

# The query will see the data as of when it goes on, not as of when it came.
$on_primary->value('INSERT INTO counted SELECT generate_series(11, 15)');
catch_up($on_primary, $admin);
ok($app->busy, 'it still waits');
release($holder);
is($app->result->{rows}[0][0], 15, 'it goes on once there is room, with a fresh snapshot');
cmp_ok(stat_of('wait_ms'), '>', 0, 'the time is counted');
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# ---- Giving up ----

$holder = occupy();
$app->send($count);
waits_at_gate($admin, $app, 'waiting, to be cancelled');
$app->cancel;
refused($app->result, '57014', qr/^canceling statement due to user request/, 'cancel while waiting');
gate_holds($admin, 1, 0, 'after a cancel nobody waits');
is($app->value('SHOW lockstep.read_throttle'), 'on', 'the session can be used');

$app->value(q{SET statement_timeout = '50ms'});
refused($app->query($count), '57014', qr/^canceling statement due to statement timeout/, 'statement_timeout');
$app->value('RESET statement_timeout');
gate_holds($admin, 1, 0, 'after a statement timeout nobody waits');

$app->value(q{SET lockstep.read_throttle_timeout = '50ms'});
my $reply = $app->query($count);
refused($reply, '53400', qr/held back for longer than lockstep.read_throttle_timeout \(50 ms\)/, 'read_throttle_timeout');
like($reply->{detail}, qr/^1 read queries execute on this standby/, 'the error says why');
like($reply->{hint}, qr/Retry/, 'and what to do');
is(stat_of('timeouts'), 1, 'the timeout is counted');
gate_holds($admin, 1, 0, 'after a timeout nobody waits');

# a transaction fails as with any error, and the gate does not mind
$app->value('BEGIN');
refused($app->query($count), '53400', qr/held back/, 'timeout in a transaction');
refused($app->query('SHOW lockstep.read_throttle'), '25P02', qr/transaction is aborted/, 'the transaction');
$app->value('ROLLBACK');
$app->value('RESET lockstep.read_throttle_timeout');

$app->send($count);
waits_at_gate($admin, $app, 'waiting, to be terminated');
is($admin->value('SELECT pg_terminate_backend(' . $app->pid . ')'), 't', 'terminated');
refused($app->result, '57P01', qr/terminating connection due to administrator command/, 'terminate while waiting');
gate_holds($admin, 1, 0, 'after a terminate nobody waits');

my $vanishing = app();
$vanishing->send($count);
waits_at_gate($admin, $vanishing, 'waiting, and the client goes away');
$vanishing->vanish;
release($holder);
gate_holds($admin, 0, 0, 'none of them has left anything at the gate');
$app = app();
is($app->value($count), 15, 'the place is free');

# ---- Who never waits ----

$holder = occupy();
for my $user (undef, 'monitor', 'replicator')
{
	my $session = LockstepSession->new($standby, user => $user);
	is($session->value($count), 15, ($user // 'superuser') . ' passes');
}

is(@{ $app->query("EXPLAIN ANALYZE $count")->{rows} } > 0, 1, 'EXPLAIN ANALYZE passes');
is($app->value('SHOW lockstep.read_throttle_max'), 1, 'SHOW passes');
$app->value("PREPARE counting AS $count");
is($app->value('EXECUTE counting'), 15, 'EXECUTE passes');

$app->value('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($app->value($count), 15, 'REPEATABLE READ passes');
is($app->value($count), 15, 'also a second time');
$app->value('COMMIT');

$app->value('BEGIN');
$app->value("DECLARE c CURSOR FOR SELECT i FROM counted ORDER BY i");
is($app->value('FETCH c'), 1, 'a cursor passes');
is($app->value($count), 15, 'so does a query while a cursor keeps a snapshot');
$app->value('COMMIT');

# no wait was counted
gate_holds($admin, 1, 0, 'those who pass hold nothing');

# a cursor that a function opens while its query is planned takes no place for the query
$app->send('SELECT opens()');
waits_at_gate($admin, $app, 'a query whose planning opens and closes a cursor waits');
gate_holds($admin, 1, 1, 'with no place');
$app->cancel;
refused($app->result, '57014', qr/user request/, 'it is cancelled');

# a transaction that keeps nothing waits, if not in its first query then later
$app->value('BEGIN');
$app->value('SHOW transaction_isolation');
$app->send($count);
waits_at_gate($admin, $app, 'a READ COMMITTED transaction waits');

# ---- Locks that others wait for ----

# it waits with an advisory lock, until another session waits for that lock
$app->cancel;
$app->result;
$app->value('ROLLBACK');
release($holder);
$app->value('BEGIN');
$app->value('SELECT pg_advisory_xact_lock(1)');
$holder = occupy();
$app->send($count);
waits_at_gate($admin, $app, 'a query waits though its transaction holds a lock');
my $blocked = LockstepSession->new($standby);
$blocked->send('SELECT pg_advisory_xact_lock(1)');
is($app->result->{rows}[0][0], 15, 'it goes on when somebody waits for that lock');
ok($blocked->busy, 'which is held to the end of the transaction');
is($app->value($count), 15, 'until then its queries pass at once');
$app->value('COMMIT');
is($blocked->result->{sqlstate}, undef, 'the other one has the lock');
gate_holds($admin, 1, 0, 'the place is still occupied by who had it');

# ---- In order of arrival ----

my @queue = map { app() } 1 .. 3;
for my $i (0 .. 2)
{
	$queue[$i]->send($FOREVER);
	waits_at_gate($admin, $queue[$i], 'number ' . ($i + 1) . ' lines up');
}
# a session that gives up leaves an entry, which must not cost others a turn
my $gives_up = app();
$gives_up->send($count);
waits_at_gate($admin, $gives_up, 'number 4 lines up');
push @queue, app();
$queue[3]->send($FOREVER);
waits_at_gate($admin, $queue[3], 'number 5 lines up');
$gives_up->cancel;
$gives_up->result;

my $in_front = $holder;
while (my $next = shift @queue)
{
	release($in_front);
	wait_until($admin, 'SELECT wait_event IS NULL FROM pg_stat_activity WHERE pid = ' . $next->pid,
		'the first in line is next');
	gate_holds($admin, 1, scalar @queue, 'all others still wait');
	waits_at_gate($admin, $_, 'this one') for @queue;
	$in_front = $next;
}
release($in_front);
gate_holds($admin, 0, 0, 'the line is served');

# a session with many queries to execute gives way between them
my $many = app();
$many->send(join '; ', ($HEAVY) x 200);
gate_holds($admin, 1, 0, 'many queries in one string');
is($app->value($count), 15, 'another query gets in between');
ok($many->busy, 'before the last of them');
release($many);
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# ---- Ways to give a place back ----

refused($app->query('SELECT 1 / (i - 5) FROM counted'), '22012', qr/division by zero/, 'an error while executing');
gate_holds($admin, 0, 0, 'gives the place back');
my $stranger = LockstepSession->new($standby, user => 'stranger');
refused($stranger->query($count), '42501', qr/permission denied/, 'an error before executing');
gate_holds($admin, 0, 0, 'gives the place back');
$holder = occupy();
$admin->value('SELECT pg_terminate_backend(' . $holder->pid . ')');
refused($holder->result, '57P01', qr/administrator command/, 'a session that is terminated while executing');
gate_holds($admin, 0, 0, 'gives the place back');
$app->value('BEGIN');
$app->value($count);
gate_holds($admin, 0, 0, 'an idle transaction holds no place');
$app->value('COMMIT');

# ---- Portals ----

# a portal that is suspended in the middle of its rows
$app->value('BEGIN');
$app->bind('some', 'SELECT i FROM counted ORDER BY i');
my $part = $app->execute('some', 2);
ok($part->{suspended}, 'a portal is suspended after two rows');
gate_holds($admin, 0, 0, 'it holds no place');
my $other = app();
is($other->value($count), 15, 'another query passes');
$holder = occupy();
is_deeply($app->execute('some', 2)->{rows}, [ [3], [4] ], 'it goes on, although the place is taken');
is(scalar @{ $app->execute('some', 0)->{rows} }, 11, 'to its end');
$app->value('COMMIT');
release($holder);

# a portal that was bound and is not executed yet: starting it took a place
$app->value('BEGIN');
$app->bind('later', $count);
gate_holds($admin, 1, 0, 'a portal that was only bound holds a place');
is($other->value($count), 15, 'but keeps nobody out while its client thinks');
is($app->execute('later', 0)->{rows}[0][0], 15, 'it can be executed');
gate_holds($admin, 0, 0, 'and gives the place back');
$app->bind('never', $count);
gate_holds($admin, 1, 0, 'bound again');
$app->value('ROLLBACK');
gate_holds($admin, 0, 0, 'the end of the transaction gives the place back');

# the transaction goes on after an error, and with it its place would
$app->value('BEGIN');
$app->value('SAVEPOINT s');
$app->bind('lost', $count);
gate_holds($admin, 1, 0, 'bound after a savepoint');
is($app->query('nonsense')->{sqlstate}, '42601', 'an error');
$app->value('ROLLBACK TO s');
gate_holds($admin, 0, 0, 'the way back to the savepoint gives the place back');
$app->value('COMMIT');

# sessions that the server ends while they are idle in a transaction
for my $idle ('with an open cursor', 'with a portal that was only bound')
{
	my $session = app();
	$session->value('BEGIN');
	if ($idle =~ /cursor/)
	{
		$session->value($_) for 'DECLARE c CURSOR FOR SELECT i FROM counted', 'FETCH c';
	}
	else
	{
		$session->bind('never', $count);
		gate_holds($admin, 1, 0, 'a portal is bound');
	}
	# not read: on a busy machine the end may come with the reply
	$session->send(q{SET idle_in_transaction_session_timeout = '20ms'});
	wait_until($admin, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $session->pid, "a session $idle is ended");
	gate_holds($admin, 0, 0, 'nothing is left at the gate');
}

# ---- Places that are not used ----

my $sleeper = app();
$sleeper->send('SELECT pg_sleep(3600)');
gate_holds($admin, 1, 0, 'a query sleeps');
is($app->value($count), 15, 'and keeps nobody out');
$holder = app();
$holder->send($FOREVER);
gate_holds($admin, 2, 0, 'one more may execute');
$app->send($count);
waits_at_gate($admin, $app, 'but not two more');
release($holder);
is($app->result->{rows}[0][0], 15, 'until that one is done');
release($sleeper);

# a query that waits for a lock
$admin->value('SELECT pg_advisory_lock(2)');
my $blocked_inside = app();
$blocked_inside->send('SELECT pg_advisory_lock(2)');
gate_holds($admin, 1, 0, 'a query waits for a lock');
is($app->value($count), 15, 'and keeps nobody out');
$admin->value('SELECT pg_advisory_unlock(2)');
$blocked_inside->result;
$blocked_inside->close;

# a query that has executed for long
$holder = occupy();
$app->send($count);
waits_at_gate($admin, $app, 'a query waits for a long one');
set_and_reload($standby, 'lockstep.read_throttle_long_query' => '50ms');
is($app->result->{rows}[0][0], 15, 'but not longer than lockstep.read_throttle_long_query');
ok($holder->busy, 'though the long one goes on');
set_and_reload($standby, 'lockstep.read_throttle_long_query' => 0);
comes_to_wait($admin, $app, $count, 'with 0 it waits again');
release($holder);
is($app->result->{rows}[0][0], 15, 'for its turn');

# ---- A turn ----

set_and_reload($standby, 'lockstep.read_throttle_turn' => '60s');
my $first = occupy();
my $second = app();
comes_to_wait($admin, $second, $FOREVER, 'a second session waits');
comes_to_wait($admin, $app, $count, 'and a third');
$first->cancel;
refused($first->result, '57014', qr/user request/, 'the first query is done');
gate_holds($admin, 2, 1, 'its session keeps the place, which only lets one more in');
is($first->value($count), 15, 'and executes again without waiting');
gate_holds($admin, 2, 1, 'while the third still waits');
set_and_reload($standby, 'lockstep.read_throttle_turn' => 0);
gate_holds($admin, 1, 1, 'lockstep.read_throttle_turn = 0 keeps no place');
release($second);
is($app->result->{rows}[0][0], 15, 'until the third has its turn');
$first->close;
set_and_reload($standby, 'lockstep.read_throttle_turn' => 20);

# ---- One place is enough ----

is($app->value('SELECT nested() FROM generate_series(1, 2)'), 45, 'for queries within a query');
my $parallel = LockstepSession->new($standby, user => 'app', options => join ' ',
	map { "-c $_" } qw(max_parallel_workers_per_gather=2 parallel_setup_cost=0 min_parallel_table_scan_size=0));
like(join('', map { $_->[0] } @{ $parallel->query("EXPLAIN $count")->{rows} }), qr/Workers Planned/, 'the plan is parallel');
is($parallel->value($count), 15, 'for a parallel query');
is_deeply($app->query("$count; $count")->{rows}, [ [15], [15] ], 'for several queries in one string');
gate_holds($admin, 0, 0, 'and it is free afterwards');

# ---- Modes ----

$admin->value('SELECT lockstep_stat_throttle_reset()');
is_deeply($admin->query('SELECT waits, wait_ms, would_wait, timeouts FROM lockstep_stat_throttle')->{rows}[0],
	[ 0, 0, 0, 0 ], 'the reset clears the counters');

for my $way ([ 'lockstep.read_throttle', 'off' ], [ 'lockstep.enabled', 'off' ])
{
	my ($setting, $value) = @$way;
	$holder = occupy();
	comes_to_wait($admin, $app, $count, 'waiting');
	set_and_reload($standby, $setting => $value);
	is($app->result->{rows}[0][0], 15, "$setting = $value lets in who waits");
	wait_for_value($app, "SHOW $setting", $value, 'the session has it, too');
	is($app->value($count), 15, 'and nobody waits from then on');
	is(stat_of('concurrency_limit'), undef, 'there is no limit');
	release($holder);
	set_and_reload($standby, $setting => 'on');
	wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'on again');
	wait_until($app, "SELECT current_setting('$setting') = 'on'", 'for the session as well');
}

set_and_reload($standby, 'lockstep.read_throttle' => 'log');
wait_until($app, q{SELECT current_setting('lockstep.read_throttle') = 'log'}, 'read_throttle = log');
$holder = occupy();
my $log_from = -s $standby->logfile;
is($app->value($count), 15, 'a query that would have waited passes');
is(stat_of('would_wait'), 1, 'it is counted');
$standby->wait_for_log(
	qr/lockstep.read_throttle would have held back a read query\n.*1 read queries execute, the limit is 1/, $log_from);
pass('the log says what would have been');
is(stat_of('mode'), 'log', 'the view shows the mode');
release($holder);
gate_holds($admin, 0, 0, 'nothing is left at the gate');

done_testing();
