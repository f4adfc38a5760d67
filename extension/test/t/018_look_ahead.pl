# Records decoded, and their blocks looked for, before replay comes to them: what it
# changes and what it may not (the rules in replay/look_ahead.c).

use strict;
use warnings FATAL => 'all';

use File::Copy;
use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Blocks after which it is decided who reads ahead (LS_WINDOW).
use constant WINDOW => 4096;

# Replay in one process, also before it is consistent.
my $primary    = new_primary(conf => "full_page_writes = off\nlockstep.replay_workers = 0\n");
my $on_primary = LockstepSession->new($primary);
$on_primary->value($_)
  for 'CREATE EXTENSION pg_buffercache',
  'CREATE TABLE hot (i int)',
  'INSERT INTO hot VALUES (0)',
  'CREATE TABLE wide (id int PRIMARY KEY, a int, filler text) WITH (fillfactor = 50)',
  q{INSERT INTO wide SELECT g, 0, repeat('x', 400) FROM generate_series(1, 10000) g};

sub update_hot
{
	my ($times) = @_;
	return $on_primary->value("DO \$\$ BEGIN FOR k IN 1 .. $times LOOP UPDATE hot SET i = i + 1; COMMIT; END LOOP; END \$\$");
}

# Rows that are far apart, each in a block of its own.
sub update_wide
{
	my ($times) = @_;
	return $on_primary->value("DO \$\$ BEGIN FOR k IN 1 .. $times LOOP
		UPDATE wide SET a = a + 1 WHERE id = 1 + (k * 97) % 10000; COMMIT; END LOOP; END \$\$");
}

sub pipeline
{
	my ($session, $column) = @_;
	return $session->value("SELECT $column FROM lockstep_stat_replay_pipeline");
}

# ---- It happens, and who reads ahead ----

my $standby = new_standby($primary, conf => "shared_buffers = 2MB\n");
my $admin   = LockstepSession->new($standby);
is(pipeline($admin, 'prefetcher'), 't', "PostgreSQL's prefetcher reads ahead at first");
update_hot(3 * WINDOW);
wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline',
	'f', 'and no longer once blocks are found in buffers');
is($admin->value('SHOW recovery_prefetch'), 'try', 'which changes nothing for sessions');
update_hot(1000);
catch_up($on_primary, $admin);
cmp_ok(pipeline($admin, 'records_ahead'), '>', 0, 'records are decoded ahead');
cmp_ok(pipeline($admin, 'blocks_remembered'), '>', 1000, 'and their blocks found where they were');

update_wide(3 * WINDOW);
wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline',
	't', "PostgreSQL's prefetcher reads ahead when blocks are missing");
cmp_ok(pipeline($admin, 'blocks_missing'), '>', WINDOW / 64, 'as the view says');

set_and_reload($standby, recovery_prefetch => 'off');
update_wide(2 * WINDOW);
wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline',
	'f', 'but not when it is configured to be off');
set_and_reload($standby, recovery_prefetch => 'on');
update_wide(2 * WINDOW);
wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline',
	't', 'and again when it is on');
update_hot(3 * WINDOW);
wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline', 'f', 'blocks are found again');

# ---- Switched off ----

for my $off ([ 'lockstep.replay_look_ahead', 0, 8 ], [ 'lockstep.enabled', 'off', 'on' ])
{
	my ($name, $value, $back) = @$off;
	set_and_reload($standby, $name => $value);
	wait_for_value($admin, "SHOW $name", $value, "$name is $value");
	update_hot(10);
	wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline',
		't', "then PostgreSQL's prefetcher reads ahead");
	my $ahead = pipeline($admin, 'records_ahead');
	update_hot(1000);
	catch_up($on_primary, $admin);
	is(pipeline($admin, 'records_ahead'), $ahead, 'and we do not');
	set_and_reload($standby, $name => $back);
	update_hot(3 * WINDOW);
	wait_for_value($admin, 'SELECT prefetcher FROM lockstep_stat_replay_pipeline', 'f', "$name is back");
}

# ---- Pages are the primary's, and the server's life goes on ----

set_and_reload($primary, wal_consistency_checking => 'all');
wait_for_value($on_primary, 'SHOW wal_consistency_checking', 'all', 'images to compare with are written');
update_wide(2000);
update_hot(500);
$on_primary->value('VACUUM wide');
catch_up($on_primary, $admin);
set_and_reload($primary, wal_consistency_checking => '');
my $sum = 'SELECT sum(a * id::bigint) + (SELECT sum(i) FROM hot) FROM wide';
is($admin->value($sum), $on_primary->value($sum), 'the standby has what the primary has');
$admin->value('SELECT lockstep_stat_replay_reset()');
cmp_ok(pipeline($admin, 'records'), '<', 1000, 'the statistics were reset');

$standby->promote;
$admin->value('UPDATE wide SET a = a + 1');
my $expected = $admin->value($sum);
$standby->stop('immediate');
$standby->start;
$admin = LockstepSession->new($standby);
is($admin->value($sum), $expected, 'a promoted standby comes through crash recovery');
cmp_ok(pipeline($admin, 'records_ahead'), '>', 0, 'which looks ahead as well');
$standby->stop;

# ---- Rule 1: replay never waits with a record half done ----

# The archive hangs when it is asked for a segment that it has not.
my $archive = PostgreSQL::Test::Utils::tempdir;
my $hang    = "$archive/hang";
my $fetch   = "$archive/fetch";
append_to_file($fetch, qq{
while :; do
	if [ -e $archive/\$1 ]; then exec cp $archive/\$1 "\$2"; fi
	case \$1 in *.*) exit 1 ;; esac
	[ -e $hang ] || exit 1
	touch $archive/asked.\$1
	sleep 0.1
done
});

# Ends the current segment.
sub archive_all
{
	my $current = $on_primary->value('SELECT pg_walfile_name(pg_switch_wal())');
	for my $path (glob $primary->data_dir . '/pg_wal/0*')
	{
		my ($name) = $path =~ m{([0-9A-F]{24})$};
		next unless defined $name && $name le $current && !-e "$archive/$name";
		copy($path, "$archive/new") or die "$path: $!";
		rename "$archive/new", "$archive/$name" or die "$name: $!";
	}
	return;
}

$primary->backup('from_archive');
my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($primary, 'from_archive');
$restored->set_standby_mode;
$restored->append_conf('postgresql.conf', qq{
restore_command = 'sh $fetch %f %p'
wal_retrieve_retry_interval = 10ms
recovery_prefetch = off
});
$restored->start;
my $on_restored = LockstepSession->new($restored);
# more WAL than a window, so that nothing else can be the cause
update_hot(100);
append_to_file($hang, '');
$on_primary->value('CREATE TABLE last_of_segment ()');
my $last = $on_primary->value('SELECT pg_current_wal_insert_lsn()');
archive_all();
$on_primary->value('CREATE TABLE first_of_segment ()');
my $next = $on_primary->value('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
wait_until(undef, sub { -e "$archive/asked.$next" }, 'the archive is asked for a segment that it has not');
cmp_ok(pipeline($on_restored, 'records_ahead'), '>', 0, 'the records before were decoded ahead');
wait_until($on_restored, "SELECT pg_last_wal_replay_lsn() >= '$last'", 'and are replayed meanwhile');
unlink $hang;
$restored->stop;

# ---- Rule 2: nothing is decoded after a shutdown checkpoint ----
# ---- Rule 4: a block in use all the time is not the next to be evicted ----

my $restarts = 8;
$primary->backup('before_restarts');
for (1 .. $restarts)
{
	$on_primary = undef;
	$primary->restart;
	$on_primary = LockstepSession->new($primary);
	update_hot(20);
}
update_hot(2000);
my $later = PostgreSQL::Test::Cluster->new('later');
$later->init_from_backup($primary, 'before_restarts');
$later->set_standby_mode;
$later->append_conf('postgresql.conf', "recovery_prefetch = off\n");
for my $path (glob $primary->data_dir . '/pg_wal/0*')
{
	my ($name) = $path =~ m{([0-9A-F]{24})$};
	next unless defined $name;
	copy($path, $later->data_dir . "/pg_wal/$name") or die "$path: $!";
}
my $end = $on_primary->value('SELECT pg_current_wal_flush_lsn()');
$later->start;
my $on_later = LockstepSession->new($later);
wait_until($on_later, "SELECT pg_last_wal_replay_lsn() >= '$end'", 'all is replayed');
cmp_ok(pipeline($on_later, 'records_ahead'), '>', 100, 'mostly ahead');
cmp_ok(pipeline($on_later, 'records - records_ahead'), '>=', $restarts, 'but not across restarts of the primary');
cmp_ok(
	$on_later->value(q{SELECT max(usagecount) FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('hot') AND relforknumber = 0}),
	'>', 1, 'use of a remembered buffer is counted');
$later->stop;

# ---- Rule 3: what the first record's errors are does not apply to later ones ----

# A checkpoint, then a record that goes on on a page which is lost.
$on_primary->value('SELECT pg_switch_wal()');
$on_primary->value('CHECKPOINT');
my $redo = $on_primary->value('SELECT redo_lsn FROM pg_control_checkpoint()');
my $segment = $on_primary->value("SELECT pg_walfile_name('$redo')");
$on_primary->value(q{SELECT pg_logical_emit_message(false, 'long', repeat('x', 100000))});
$primary->stop('immediate');
$primary->append_conf('postgresql.conf', "recovery_prefetch = off\n");
my $page = int(hex((split m{/}, $redo)[1]) % (16 * 1024 * 1024) / 8192);
truncate $primary->data_dir . "/pg_wal/$segment", ($page + 1) * 8192 or die $!;
$primary->start;
is($primary->safe_psql('postgres', 'SELECT count(*) FROM hot'), 1, 'recovery ends where the WAL does, as without us');

done_testing();
