# A session for which a place was added leaves while the controller counts. The controller
# is held up in between: it reads the state of sessions from a /proc of this test's making
# (lockstep.proc_root), in which that file is a pipe.
use strict;
use warnings FATAL => 'all';

use Fcntl;
use File::Path qw(make_path);
use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use POSIX qw(mkfifo);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $proc = PostgreSQL::Test::Utils::tempdir() . '/proc';
my ($primary, $standby, $on_primary, $admin) = primary_and_standby(
	conf => qq{
lockstep.read_throttle_max = 1
lockstep.read_throttle_long_query = 0
lockstep.read_throttle_turn = '60s'
lockstep.replay_priority = off
lockstep.proc_root = '$proc'
});

sub app { return LockstepSession->new($standby, user => 'app'); }

wait_until($admin, 'SELECT concurrency_limit = 1 FROM lockstep_stat_throttle', 'the controller has set the limit');

my ($first, $second, $third) = (app(), app(), app());
$first->send($FOREVER);
gate_holds($admin, 1, 0, 'the one place is occupied');
comes_to_wait($admin, $second, $FOREVER, 'a second session waits');
comes_to_wait($admin, $third, $FOREVER, 'and a third');
$first->cancel;
refused($first->result, '57014', qr/user request/, 'the first query is done');
gate_holds($admin, 2, 1, 'its session rests in its turn, and a place was added for that');

my $state = "$proc/" . $first->pid . '/stat';
make_path("$proc/" . $first->pid);
mkfifo("$state.pipe", 0600) or die "cannot make a pipe: $!";
rename "$state.pipe", $state or die "cannot rename: $!";
my $pipe;
wait_until(undef, sub { sysopen $pipe, $state, O_WRONLY | O_NONBLOCK },
	'the controller is counting, and reads the state of that session');
append_to_file("$state.file", '1 (postgres) R');
rename "$state.file", $state or die "cannot rename: $!";
$first->close;
wait_until($admin, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $first->pid, 'the session leaves');
syswrite $pipe, '1 (postgres) R';
close $pipe;

# what a reload brings to light comes after the round that was held up
make_path("$proc/self");
append_to_file("$proc/self/autogroup", "/autogroup-1 nice 0\n");
$standby->reload;
wait_until($admin, q{SELECT detail LIKE '%sched_autogroup_enabled is not 1%' FROM lockstep_stat_priority},
	'the controller goes on');
gate_holds($admin, 1, 1, 'the place that was added has gone with the session');

$second->cancel;
refused($second->result, '57014', qr/user request/, 'the second query is done');
$second->close;
gate_holds($admin, 1, 0, 'the third session has the place');
$third->cancel;
refused($third->result, '57014', qr/user request/, 'the third query is done');
gate_holds($admin, 0, 0, 'nothing is left at the gate');

done_testing();
