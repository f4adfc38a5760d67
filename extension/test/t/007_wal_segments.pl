# A standby creates WAL segments ahead of its walreceiver: as many as
# lockstep.wal_segments_ahead says, on the timeline that it receives, and none
# when it is 0 or lockstep.enabled is off.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($primary, $standby, $on_primary, $admin) = primary_and_standby(conf => "wal_init_zero = on\n");

# Segments on the standby after the one of which something has been received, and of
# which timeline they are.
my $AHEAD = q{
	SELECT count(*) || ' of ' || coalesce(string_agg(DISTINCT left(name, 8)::int::text, ','), 'none')
	FROM pg_ls_waldir(), pg_stat_wal_receiver
	WHERE name ~ '^[0-9A-F]{24}$'
	  AND ('x' || substr(name, 9, 8))::bit(32)::bigint * 256 + ('x' || substr(name, 17, 8))::bit(32)::bigint
	      >= (flushed_lsn - '0/0') / 16777216::numeric};

# At least count segments: one that walreceiver and worker both create makes one
# more.
sub are_ready
{
	my ($session, $count, $timeline, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($session, "SELECT ($AHEAD) ~ '^([$count-9]|[0-9]{2}) of $timeline\$'", $name);
}

sub receive_one_more
{
	$on_primary->value('CREATE TABLE IF NOT EXISTS more(); SELECT pg_switch_wal()');
	$on_primary->value('INSERT INTO t VALUES (0)');
	catch_up($on_primary, $admin);
	return;
}

sub temporary_files
{
	my ($node) = @_;
	my @files = glob $node->data_dir . '/pg_wal/xlogtemp.*';
	return scalar @files;
}

# ---- Ahead ----

are_ready($admin, 4, 1, 'four segments are ready');
for my $round (1 .. 3)
{
	receive_one_more();
	are_ready($admin, 4, 1, "and again after segment switch $round");
}
is(temporary_files($standby), 0, 'without leaving temporary files');

set_and_reload($standby, 'lockstep.wal_segments_ahead' => 6);
are_ready($admin, 6, 1, 'more when told so');

for my $way ([ 'lockstep.wal_segments_ahead' => 0, 6 ], [ 'lockstep.enabled' => 'off', 'on' ])
{
	my ($setting, $value, $before) = @$way;
	set_and_reload($standby, $setting => $value);
	wait_until($admin,
		sub { receive_one_more(); $admin->value($AHEAD) eq '2 of 1' },
		"none is added with $setting = $value");
	set_and_reload($standby, $setting => $before);
	are_ready($admin, 6, 1, 'until that is taken back');
}

# ---- A contents check: what is received into such a segment is what was sent ----

$on_primary->value('INSERT INTO t SELECT g FROM generate_series(1, 300000) g');
catch_up($on_primary, $admin);
my $rows = q{SELECT count(*) || ' rows, sum ' || sum(i) FROM t};
is($admin->value($rows), $on_primary->value($rows),
	'rows that span segments arrive');

# ---- Promotion and the timeline after it ----

my $second = new_standby($standby, name => 'second');
my $on_second = LockstepSession->new($second);
are_ready($on_second, 4, 1, 'a cascading standby has segments ready');
$standby->promote;
wait_until($admin, 'SELECT NOT pg_is_in_recovery()', 'promoted');
$admin->value('INSERT INTO t VALUES (0)');
catch_up($admin, $on_second);
# the server turns those made ahead on the old timeline into segments of the new
are_ready($on_second, 4, 2, 'it goes on with the new timeline only');
$admin->value('INSERT INTO t VALUES (0)');
$admin->value('SELECT pg_switch_wal()') for 1 .. 2;
$admin->value('INSERT INTO t SELECT g FROM generate_series(1, 300000) g');
catch_up($admin, $on_second);
is($on_second->value('SELECT sum(i) FROM t'), $admin->value('SELECT sum(i) FROM t'), 'what the new primary writes arrives');

for my $node ($standby, $second)
{
	# while it makes a segment there is one
	wait_until(undef, sub { temporary_files($node) == 0 }, $node->name . ' has no temporary files left');
	unlike(slurp_file($node->logfile), qr/"lockstep WAL segments".* exited|PANIC/,
		'and the worker never failed');
}

done_testing();
