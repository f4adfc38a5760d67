# The queue gets its places, whatever the sessions do that may not wait.
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

sub app { return LockstepSession->new($standby, user => 'app'); }

sub release
{
	my ($session) = @_;
	$session->cancel;
	refused($session->result, '57014', qr/user request/, 'a query is cancelled');
	$session->close;
	return;
}

# A session in a transaction with an open cursor: it keeps a snapshot, so it may
# not wait.
sub with_cursor
{
	my $session = app();
	$session->value($_) for 'BEGIN', 'DECLARE c CURSOR FOR SELECT i FROM t ORDER BY i';
	is($session->value('FETCH c'), 1, 'a session has an open cursor');
	return $session;
}

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');

# ---- Places over the capacity ----

my $holder = app();
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
my @over;
for my $n (2 .. 4)
{
	push @over, with_cursor();
	$over[-1]->send($FOREVER);
	gate_holds($admin, $n, 0, 'it executes without a place');
}
my @queue = (app(), app());
$_->send('SELECT 42') for @queue;
waits_at_gate($admin, $_, 'who may wait does') for @queue;
release($holder);
is($_->result->{rows}[0][0], 42, 'those who wait get the place, however many execute without one') for @queue;
ok($_->busy, 'such as this session, still') for @over;
gate_holds($admin, 3, 0, 'and give it back');

# with a higher minimum
set_and_reload($standby, 'lockstep.read_throttle_min' => 2, 'lockstep.read_throttle_max' => 2);
wait_until($admin, 'SELECT concurrency_limit = 2 FROM lockstep_stat_throttle', 'the least is two');
my @inside = (app(), app());
for my $n (0, 1)
{
	$inside[$n]->send($FOREVER);
	gate_holds($admin, 4 + $n, 0, 'one more gets a place');
}
my $third = app();
comes_to_wait($admin, $third, 'SELECT 42', 'a third session waits');
release($_) for @inside;
is($third->result->{rows}[0][0], 42, 'for one of the two places');

# above the minimum they do count
set_and_reload($standby, 'lockstep.read_throttle_min' => 1, 'lockstep.read_throttle_max' => 4);
wait_until($admin, 'SELECT concurrency_limit = 4 FROM lockstep_stat_throttle', 'four places');
$holder = app();
$holder->send($FOREVER);
gate_holds($admin, 4, 0, 'four queries execute, three of them without a place');
comes_to_wait($admin, $third, 'SELECT 42', 'a fifth waits');
release(shift @over);
is($third->result->{rows}[0][0], 42, 'until one of them is done');
release($_) for @over, $holder;
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# ---- What came by another way ----

# Such a call never waits, but counts while it executes: then the queue has only its minimum.
set_and_reload($standby, 'lockstep.read_throttle_max' => 2);
wait_until($admin, 'SELECT concurrency_limit = 2 FROM lockstep_stat_throttle', 'two places');

# Two rows come at once, the third never.
my $two_rows = 'SELECT i FROM (SELECT generate_series(1, 1000000000000) AS i) s WHERE i < 3';
my %ways = (
	'a transaction of REPEATABLE READ' => sub {
		my ($session) = @_;
		$session->value('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$session->send($FOREVER);
	},
	'the statement EXECUTE' => sub {
		my ($session) = @_;
		$session->value("PREPARE forever AS $FOREVER");
		$session->send('EXECUTE forever');
	},
	'EXPLAIN ANALYZE' => sub { $_[0]->send("EXPLAIN ANALYZE $FOREVER"); },
	'a DO block' => sub { $_[0]->send("DO 'BEGIN PERFORM 1; PERFORM i FROM ($FOREVER) f(i); END'"); },
	'a cursor' => sub {
		my ($session) = @_;
		$session->value($_) for 'BEGIN', "DECLARE c CURSOR FOR $two_rows";
		is(@{ $session->query('FETCH 2 FROM c')->{rows} }, 2, 'a cursor has two rows');
		gate_holds($admin, 0, 0, 'between two fetches it does not count');
		$session->send('FETCH c');
	},
	'a later fetch of a portal' => sub {
		my ($session) = @_;
		$session->value('BEGIN');
		$session->bind('some', $two_rows);
		is(@{ $session->execute('some', 2)->{rows} }, 2, 'a portal has two rows');
		gate_holds($admin, 0, 0, 'between two fetches it does not count');
		$session->send_execute('some', 0);
	});
for my $way (sort keys %ways)
{
	my $passing = app();
	$ways{$way}->($passing);
	gate_holds($admin, 1, 0, "$way counts");
	$holder = app();
	$holder->send($FOREVER);
	gate_holds($admin, 2, 0, 'one place is left');
	comes_to_wait($admin, $third, 'SELECT 42', 'another query waits');
	release($passing);
	is($third->result->{rows}[0][0], 42, 'until it has ended');
	release($holder);
	gate_holds($admin, 0, 0, 'nothing is left at the gate');
}

# however many there are
@over = map { app() } 1 .. 3;
for my $n (0 .. 2)
{
	$ways{'a transaction of REPEATABLE READ'}->($over[$n]);
	gate_holds($admin, $n + 1, 0, 'one more executes without a place');
}
is($third->value('SELECT 42'), 42, 'the queue has its minimum all the same');
release($_) for @over;
gate_holds($admin, 0, 0, 'nothing is left at the gate');

# A session that keeps its place for its turn executes in it.
set_and_reload($standby,
	'lockstep.read_throttle_max'  => 1,
	'lockstep.read_throttle_turn' => '60s');
wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'one place');
my $first = app();
$first->value("PREPARE forever AS $FOREVER");
$first->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
comes_to_wait($admin, $third, $FOREVER, 'a second session waits');
my $fourth = app();
comes_to_wait($admin, $fourth, $FOREVER, 'and a third');
$first->cancel;
refused($first->result, '57014', qr/user request/, 'the first query is done');
gate_holds($admin, 2, 1, 'its session keeps the place');
$first->send('EXECUTE forever');
wait_until($admin, 'SELECT wait_event IS NULL FROM pg_stat_activity WHERE pid = ' . $first->pid, 'it executes a prepared statement');
gate_holds($admin, 2, 1, 'and has no other place for that');
release($_) for $first, $third, $fourth;
gate_holds($admin, 0, 0, 'nothing is left at the gate');
set_and_reload($standby, 'lockstep.read_throttle_turn' => 20);
$third = app();

# ---- A session's clock ----

# Entries that are left in the queue do not restart the clock of their session.
set_and_reload($standby, 'lockstep.read_throttle_max' => 1);
wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'one place');
$holder = app();
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
my $long = app();
comes_to_wait($admin, $long, 'SELECT 1', 'a session waits');
$long->cancel;
refused($long->result, '57014', qr/user request/, 'and gives up, which leaves its entry in the queue');
release($holder);
gate_holds($admin, 0, 0, 'the place is free');
$long->send($FOREVER);
gate_holds($admin, 1, 0, 'the session has it');
my $next = app();
$next->send($FOREVER);
waits_at_gate($admin, $next, 'the next waits behind the entry');
wait_until($admin, q{SELECT clock_timestamp() - query_start > '6 s' FROM pg_stat_activity WHERE pid = } . $long->pid,
	'the first executes for longer than what counts as long next');
set_and_reload($standby, 'lockstep.read_throttle_long_query' => '5s');
gate_holds($admin, 2, 0, 'it makes room for the next');
release($next);
gate_holds($admin, 1, 0, 'which is done');
my $waits = $admin->value('SELECT waits FROM lockstep_stat_throttle');
is(app()->value('SELECT 42'), 42, 'a third passes');
is($admin->value('SELECT waits FROM lockstep_stat_throttle'), $waits, 'without waiting, as the first still counts as long');
release($long);

done_testing();
