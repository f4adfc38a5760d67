# Sessions that have used little of the gate go before those that use it all the time,
# and neither keeps the other out.
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
});

sub app { return LockstepSession->new($standby, user => 'app'); }

sub release
{
	my ($session) = @_;
	$session->cancel;
	refused($session->result, '57014', qr/user request/, 'a query is cancelled');
	return;
}

# The session's last query has executed for much longer than a turn.
sub heavy
{
	my ($session) = @_;
	$session->send($FOREVER);
	# of a session that has not begun yet the last query is shown, which is not active
	wait_until($admin, q{SELECT clock_timestamp() - query_start > '1 s' AND wait_event IS NULL AND state = 'active'
		FROM pg_stat_activity WHERE pid = } . $session->pid, 'a session executes for long');
	release($session);
	return $session;
}

# A session whose last query has executed for much less than a turn. It is tried
# again where the machine was too busy for that.
sub light
{
	my $session = app();
	wait_until(undef, sub {
		my $began = time;
		$session->value('SELECT 42');
		return time - $began < 0.003;
	}, 'a session has executed for a moment');
	return $session;
}

sub lines_up
{
	my ($name, $session) = @_;
	comes_to_wait($admin, $session, $FOREVER, "$name lines up");
	return [ $name, $session ];
}

# Ends what executes, again and again, and says who came next each time.
sub order_of
{
	my ($in_front, @waiting) = @_;
	my @order;
	while (@waiting)
	{
		release($in_front);
		gate_holds($admin, 1, @waiting - 1, 'one more is let in');
		# which has still to wake up
		wait_for_value($admin, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'LockstepReadThrottle'},
			@waiting - 1, 'the others wait');
		my %waits = map { $_->[0] => 1 }
		  @{ $admin->query(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'LockstepReadThrottle'})->{rows} };
		my @next = grep { !$waits{ $_->[1]->pid } } @waiting;
		push @order, $next[0][0];
		$in_front = $next[0][1];
		@waiting = grep { $_ != $next[0] } @waiting;
	}
	release($in_front);
	gate_holds($admin, 0, 0, 'all are served');
	return "@order";
}

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');

my @heavy = map { heavy(app()) } 1 .. 3;
my @light = map { light() } 1 .. 6;
my $holder = app();
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');

my @waiting;
push @waiting, lines_up('H' . ($_ + 1), $heavy[$_]) for 0 .. 2;
push @waiting, lines_up('L' . ($_ + 1), $light[$_]) for 0 .. 5;
is(order_of($holder, @waiting), 'L1 L2 L3 L4 H1 L5 L6 H2 H3',
	'light sessions go first, though they came last, and four of them before a heavy one');

# what the last turn was like counts, and who is new had none
heavy($heavy[$_]) for 0, 1;
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
my $new = app();
@waiting = ();
push @waiting, lines_up('H1', $heavy[0]);
push @waiting, lines_up('N', $new);
is(order_of($holder, @waiting), 'N H1', 'who is new is light');

# An entry left by a session that gave up is neither served nor in the way.
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
comes_to_wait($admin, $heavy[0], 'SELECT 1', 'a heavy one lines up');
release($heavy[0]);
my $other = app();
@waiting = (lines_up('H2', $heavy[1]), lines_up('N', $other));
is(order_of($holder, @waiting), 'N H2', 'an entry that is left changes nothing');

done_testing();
