# What "auto" means for lockstep.replay_workers and lockstep.replay_hot_standby, and settings that are more
# than the server has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use lib "$FindBin::Bin/../perl";
use List::Util qw(max min);
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_primary(conf => "checkpoint_timeout = 1h\nmax_wal_size = 10GB\n");
$primary->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, k int);
	INSERT INTO a SELECT g, g FROM generate_series(1, 5000) g});
$primary->backup('base');
$primary->safe_psql('postgres', q{
	DO $$ BEGIN FOR n IN 1 .. 4 LOOP UPDATE a SET k = k + 1; COMMIT; END LOOP; END $$});
my $sum = 'SELECT sum(k * id::bigint) FROM a';
my $expected = $primary->safe_psql('postgres', $sum);
my $target = $primary->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$primary->safe_psql('postgres', 'INSERT INTO t SELECT generate_series(1, 10)');
crashed($primary, 'crash');
keep_wal($primary, 'base');

# What the log of a server says that "auto" means, and of what it is made.
sub meaning
{
	my ($node) = @_;
	my $pattern = 'LOG:  lockstep\.replay_workers is "auto", which means (\d+)\n'
	  . '.*DETAIL:  Cores that the server may use: ([\d.]+)\. '
	  . 'Background workers that max_worker_processes leaves: (\d+)\. (.*)\.\n';
	my @found = slurp_file($node->logfile) =~ /$pattern/;
	return @found;
}

sub warnings_of { return join '', slurp_file($_[0]->logfile) =~ /^.*(WARNING:  .*\n.*DETAIL:  .*\n|WARNING:  .*\n)/mg; }

# Shared memory of the library, in kB.
sub shared_kb
{
	return int $_[0]->safe_psql('postgres', "SELECT allocated_size / 1024 FROM pg_shmem_allocations WHERE name = 'lockstep'");
}

# The server with all rows, and what was said at its start.
sub recovers
{
	my ($conf, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $node = recovered($primary, 'crash', $conf);
	is($node->safe_psql('postgres', $sum), $expected, "$name: all rows are there");
	return $node;
}

# Calls the function while this process, and so what it starts, may use the first of its cores only.
sub on_one_core
{
	my ($function) = @_;
	my ($all) = `taskset -pc $$` =~ /: ([\d,-]+)$/ or die 'taskset failed';
	my ($first) = $all =~ /^(\d+)/;
	system_or_bail('taskset', '-pc', $first, $$);
	my $result = eval { $function->() };
	my $error = $@;
	system_or_bail('taskset', '-pc', $all, $$);
	die $error unless defined $result;
	return $result;
}

# ---- By default ----

my $ours = recovers('', 'crash recovery without any setting');
my ($helpers, $cores, $room, $where) = meaning($ours);
# "auto" means helpers where long tests have run (start_rule.c); elsewhere the rest of this test runs without them
my $major = $ours->pg_version->major;
my $has_run = grep { $_ == $major } 15, 17, 18;
my $one = 'One process replays' . ($has_run ? '' : ", since the long tests with more have not run on PostgreSQL $major");
my $none = $has_run ? 'the server may use less than two cores' :
  "lockstep.replay_workers = auto means 0 on PostgreSQL $major, on which the long tests have not run";
cmp_ok($cores, '>', 0, "the log says what it is made of, cores: $cores");
is($helpers, $has_run ? min(max(int($cores) - 1, 0), $room, 4) : 0, 'a helper for each core but one, 4 at most');
is($room, 5, 'of 8 processes three are taken');
my $until = 'Replay helpers work until recovery is consistent, and not in hot standby';
my $also = 'By lockstep.replay_hot_standby replay helpers also work in hot standby, at most ' . min($helpers, 2);
# which of the two "auto" means depends on the major (start_rule.c); the rest of this test holds the server to it
my $auto_is_on = $where eq $also;
is($where, $helpers == 0 ? $one : $auto_is_on ? $also : $until, 'and when they work');
is(warnings_of($ours), '', 'nothing alarming is said');
my $with_queue = shared_kb($ours);
my $by_default = $helpers;

SKIP:
{
	skip 'there are no helpers', 3 if $helpers == 0;
	cmp_ok(pipeline($ours, 'dispatched'), '>', 10000, 'records run ahead');
	like(slurp_file($ours->logfile), qr{parallel replay begins after \S+, before consistency, with replay helpers: [1-4]$}m,
		'the log says when parallel replay began');
	# it ends before, and may begin again, if other processes keep the cores busy
	like(slurp_file($ours->logfile), qr{parallel replay ends after \S+: (recovery has ended|other processes need the cores)$}m,
		'and when it ended');
}

# ---- A reload ----

my $admin = LockstepSession->new($ours);
$admin->value('ALTER SYSTEM SET lockstep.replay_workers = 1');
$admin->value('ALTER SYSTEM SET lockstep.replay_hot_standby = on');
set_and_reload($ours, 'lockstep.wait_timeout' => '5s');
wait_for_value($admin, 'SHOW lockstep.wait_timeout', '5s', 'the configuration is read again');
is($admin->value('SHOW lockstep.replay_workers'), 'auto', 'the number of helpers stays');
is($admin->value(q{SELECT pending_restart FROM pg_settings WHERE name = 'lockstep.replay_workers'}), 't', 'until a restart');
$admin->close;
$ours->restart;
is($ours->safe_psql('postgres', 'SHOW lockstep.replay_workers'), 1, 'which takes a number as before');
is($ours->safe_psql('postgres', $sum), $expected, 'and all rows are there');
$ours->stop;
$ours->clean_node;

# ---- One core ----

$ours = on_one_core(sub { recovers('', 'on one core') });
is(join(' ', (meaning($ours))[0, 1, 3]), "0 1 $one", 'there are no helpers on one core');
is(pipeline($ours, 'parallel'), "no: $none", 'the view says so');
is(pipeline($ours, 'dispatched'), 0, 'and nothing runs ahead');
my $without_queue = shared_kb($ours);
$ours->stop;
$ours->clean_node;

# ---- No background worker ----

$ours = recovers("max_worker_processes = 3\n", 'without a free background worker');
is((meaning($ours))[0], 0, 'there are no helpers then');
like(pipeline($ours, 'parallel'), qr/^no: (no background worker is free|$none)$/, 'the view says so');
is(warnings_of($ours), '', 'which is no reason for a warning: nobody asked for them');
# fewer processes take a little less
cmp_ok(shared_kb($ours), '<=', $without_queue, 'nor is there a queue');
$ours->stop;
$ours->clean_node;

# ---- More than there is ----

my $proc = PostgreSQL::Test::Utils::tempdir() . '/proc';
mkdir $proc or die $!;
append_to_file("$proc/meminfo", "MemTotal:          16384 kB\nMemFree:            1000 kB\n");
my $few = "lockstep.proc_root = '$proc'\nlockstep.replay_workers = 2\nlockstep.replay_min_backlog = 0\n";

$ours = recovers("${few}lockstep.replay_queue_size = 1GB\n", 'with a queue larger than memory');
like(warnings_of($ours), qr/^WARNING:  lockstep\.replay_queue_size is 1048576 kB, more than a quarter of the memory that the server may use \(16384 kB\)\n.*DETAIL:  The queue gets 4096 kB\.\n\z/,
	'the log says so, and what is used instead');
my $least = shared_kb($ours);
cmp_ok($least - $without_queue, '>=', 4096, 'which is a quarter of the memory');
cmp_ok($least - $without_queue, '<', 4200, 'and no more');
like(pipeline($ours, "parallel || ' ' || dispatched"), qr/^no: (recovery has ended [1-9]\d{4,}|the server may use less than two cores 0)$/,
	'records run ahead in it');
$ours->stop;
$ours->clean_node;

$ours = recovers("${few}lockstep.replay_queue_size = 4MB\n", 'with a queue that just fits');
is(warnings_of($ours), '', 'nothing is said');
is(shared_kb($ours), $least, 'and it is as large');
is($with_queue, $least, 'as by default') if $by_default > 0;
$ours->stop;
$ours->clean_node;

# ---- Single-user mode, as pg_rewind uses it ----

$ours = copy_of($primary, 'crash', '');
my ($out, $said);
IPC::Run::run([ 'postgres', '--single', '-D', $ours->data_dir, 'postgres' ], '<', \"$sum;\n", '>', \$out, '2>', \$said)
  or die "single-user mode failed: $said";
like($out, qr/sum = "$expected"/, 'recovery in single-user mode has all rows');
unlike($said, qr/WARNING|lockstep|replay helper/, 'and says nothing of helpers');
$ours->start;
is($ours->safe_psql('postgres', $sum), $expected, 'as has the server afterwards');
$ours->stop;
$ours->clean_node;

# ---- A recovery target ----

$ours = copy_of($primary, 'base', "restore_command = 'false'\nrecovery_target_lsn = '$target'\n"
	. "recovery_target_action = promote\n");
append_to_file($ours->data_dir . '/recovery.signal', '');
$ours->start;
$ours->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'recovery does not end';
is($ours->safe_psql('postgres', "$sum UNION ALL SELECT count(*) FROM t"), "$expected\n1000",
	'recovery ends at its target');
like(pipeline($ours, "parallel || ' ' || dispatched"),
	qr/^no: (recovery has a target|$none) 0$/, 'and nothing has run ahead of it');
$ours->stop;
$ours->clean_node;

# ---- Hot standby ----

$primary->start;
my $on_primary = LockstepSession->new($primary);
my $standby = new_standby($primary, conf => "lockstep.replay_min_backlog = 0\n");
my $state = 'SELECT parallel FROM lockstep_stat_replay_pipeline';
$admin = LockstepSession->new($standby);
($helpers) = meaning($standby);
is((meaning($standby))[3], $where, 'the log says when helpers work');

# Writes until the view of the standby says that.
sub says
{
	my ($words, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(undef, sub {
		$on_primary->value('UPDATE a SET k = k + 1 WHERE id % 5 = 0');
		return $admin->value($state) =~ $words;
	}, $name);
}

my $why = $helpers > 0 ? '(it is consistent|the minimum recovery point is reached), and lockstep\.replay_hot_standby' : $none;
my $off = $helpers > 0 ? "$why is off" : $why;
my $on = $helpers > 0 ? 'yes' : "no: $why";
my $auto = $auto_is_on ? $on : $helpers > 0 ? "no: $why = auto means off on PostgreSQL $major" : "no: $why";
is($admin->value('SHOW lockstep.replay_hot_standby'), 'auto', 'by default the major decides');
says(qr/^$auto/, 'which is what the log says');
wait_for_value($admin, 'SELECT count(*) > 0 FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL', $auto_is_on ? 't' : 'f',
	'and helpers are there if it means on');
for my $case ([ 'true', 'on' ], [ 'no', 'off' ], [ '1', 'on' ], [ 'false', 'off' ], [ 'on', 'on' ], [ 'auto', 'auto' ])
{
	my ($value, $shown) = @$case;
	set_and_reload($standby, 'lockstep.replay_hot_standby' => $value);
	wait_for_value($admin, 'SHOW lockstep.replay_hot_standby', $shown, "$value is $shown");
	says($shown eq 'on' ? qr/^$on/ : $shown eq 'off' ? qr/^no: $off$/ : qr/^$auto/, 'and does that');
}
my $ended = $auto_is_on ? 'is off' : "= auto means off on PostgreSQL $major";
like(slurp_file($standby->logfile), qr{parallel replay ends after \S+: it is consistent, and lockstep\.replay_hot_standby $ended$}m,
	'the log says why parallel replay ended') if $helpers > 0;

SKIP:
{
	skip 'there are no helpers', 2 if $helpers == 0;
	# a backlog of 0 would make them go on with one core
	set_and_reload($standby, 'lockstep.replay_hot_standby' => 'on', 'lockstep.replay_min_backlog' => '1kB');
	wait_for_value($admin, 'SHOW lockstep.replay_min_backlog', '1kB', 'the configuration is read again');
	my $startup = $admin->value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
	on_one_core(sub { system_or_bail('taskset', '-pc', (`taskset -pc $$` =~ /: (\d+)$/)[0], $startup); 1 });
	says(qr/^no: the server may use less than two cores$/, 'helpers rest once all cores but one are lost');
}

$on_primary->value('UPDATE a SET k = k + 1');
catch_up($on_primary, $admin);
is($admin->value($sum), $on_primary->value($sum), 'the standby has what the primary has');
$admin->close;
$on_primary->close;
$_->stop for $standby, $primary;

done_testing();
