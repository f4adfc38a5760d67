# A short query of a user who has nothing inside the gate does not wait for the reports of another user, and
# takes no place from them.
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
# seems short to the planner, and never ends
$on_primary->query($_) for 'CREATE ROLE other LOGIN', 'CREATE ROLE third LOGIN',
  q{CREATE FUNCTION seems_short() RETURNS int LANGUAGE plpgsql AS 'BEGIN LOOP END LOOP; END'};
catch_up($on_primary, $admin);
wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');

# CPU time that the session's process has used, in ms
sub cpu_ms
{
	my ($session) = @_;
	my ($ns) = slurp_file('/proc/' . $session->pid . '/schedstat') =~ /^(\d+)/;
	return $ns / 1e6;
}

sub session { return LockstepSession->new($standby, user => $_[0]); }

sub release
{
	my ($session) = @_;
	$session->cancel;
	refused($session->result, '57014', qr/user request/, 'a query is cancelled');
	return;
}

# LS_SHORT_US of line_rule.h
my $SHORT_MS = 5;

# The answer comes while the gate holds what it holds.
sub passes
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->send('SELECT 42');
	return is($session->result->{rows}[0][0], 42, $name)
	  if wait_until(undef, sub { !$session->busy }, "$name: it ends");
	return release($session);
}

my $holder = session('app');
$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'a report has the one place');
my @reports = map { session('app') } 1 .. 3;
comes_to_wait($admin, $_, 'SELECT 1', 'a new session of its user waits') for @reports;

# ---- Another user ----

my $look_up = session('other');
passes($look_up, 'a short query of another user passes') for 1 .. 3;
gate_holds($admin, 1, 3, 'and leaves all as it was');

my $second = session('other');
comes_to_wait($admin, $second, $FOREVER, 'a query that seems long waits');
passes($look_up, 'a short one of that user passes still');
release($second);

# ---- What seems short and is not ----

my $long = session('other');
my $cpu_before = cpu_ms($long);
$long->send('SELECT seems_short()');
gate_holds($admin, 2, 3, 'it executes beside the report');
comes_to_wait($admin, $look_up, 'SELECT 42', 'and counts as a report: other sessions of its user wait');
my $third = session('third');
comes_to_wait($admin, $third, 'SELECT 43', 'and so does a third user, since no more than twice the limit execute');
gate_holds($admin, 2, 5, 'all of them wait');
# On a busy machine that may take long. Its session remembers that it was misjudged by CPU time only (express.c).
wait_until(undef, sub { cpu_ms($long) > $cpu_before + 4 * $SHORT_MS }, 'what seemed short has used CPU for longer');
release($holder);
is($third->result->{rows}[0][0], 43, 'who goes before the sessions that came earlier');
gate_holds($admin, 1, 4, 'since what seemed short has the place that became free');
release($long);
$_->result for @reports;
is($look_up->result->{rows}[0][0], 42, 'in the end all are served');
gate_holds($admin, 0, 0, 'and nothing is left at the gate');

$holder->send($FOREVER);
gate_holds($admin, 1, 0, 'a report has the one place');
comes_to_wait($admin, $long, 'SELECT seems_short()', 'a session whose query only seemed short waits with the next one');
passes($look_up, 'another session of its user does not');
release($_) for $long, $holder;
gate_holds($admin, 0, 0, 'and nothing is left at the gate');

done_testing();
