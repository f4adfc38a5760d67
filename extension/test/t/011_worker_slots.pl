# Too small a max_worker_processes: the log says which worker is missing, and the
# controller is the last one to be.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A standby must not have fewer than its primary. The launcher of logical
# replication takes the first.
my $primary = new_primary(create_extension => 0, conf => "max_worker_processes = 1\n");

sub said { return [ slurp_file($_[0]->logfile) =~ /WARNING:  (lockstep \S+ (?:\S+ )?cannot run.*)/g ]; }

my @missing = map { "lockstep $_ cannot run: max_worker_processes (%d) leaves no background worker for it" } ('controller', 'WAL segments');

for my $case ([ 1, 'no', @missing ], [ 2, 'one', $missing[1] ], [ 3, 'two' ])
{
	my ($number, $free, @expected) = @$case;
	my $standby = new_standby($primary, name => "standby_$number", conf => "max_worker_processes = $number\n");
	is_deeply(said($standby), [ map { sprintf $_, $number } @expected ], "the log says what is missing with $free free workers");
	like(slurp_file($standby->logfile), qr/HINT:  .*raise max_worker_processes and restart/, 'and what to do') if @expected;
	wait_until(undef, sub { defined controller_pid($standby) }, 'the controller runs') if $number > 1;
	is(LockstepSession->new($standby, user => 'app')->value('SELECT count(*) FROM t'), 1000, 'queries pass');
	$standby->stop;
}

# Helpers are started when there is something to replay; that there is no room for them is said at start.
for my $case ([ 3, 5, 0 ], [ 5, 5, 2 ], [ 8, 5, 5 ])
{
	my ($number, $workers, $room) = @$case;
	my $standby = new_standby($primary, name => "helpers_$number",
		conf => "max_worker_processes = $number\nlockstep.replay_workers = $workers\n");
	my ($said) = slurp_file($standby->logfile) =~ /WARNING:  (lockstep\.replay_workers is .*)/;
	is($said, $room == $workers ? undef
		: "lockstep.replay_workers is $workers, but max_worker_processes ($number) leaves background workers for $room",
		"what $number processes leave for $workers helpers");
	$standby->stop;
}

# Beside that: who waits for a server that has ended does not wait for minutes (LockstepCluster.pm).
my $last = new_standby($primary, name => 'last', conf => "max_worker_processes = 1\n");
kill 'KILL', slurp_file($last->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my $began = time;
ok(!$last->poll_query_until('postgres', 'SELECT false'), 'a query of a server that has ended fails');
ok(!eval { $primary->wait_for_catchup($last, 'replay', 'FFFFFFFF/0'); 1 }, 'so does waiting for its replay');
ok(!eval { $last->wait_for_log('never said'); 1 }, 'and for its log');
cmp_ok(time - $began, '<', $PostgreSQL::Test::Utils::timeout_default / 2, 'at once');
$last->{_pid} = undef;

done_testing();
