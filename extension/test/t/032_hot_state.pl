# What lockstep_stat_replay_pipeline says of replay that is not parallel although it could be, and of
# what the startup process waits for.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = hot_primary('primary');
my $ours    = new_standby($primary, name => 'ours',
	conf => "${HOT}lockstep.replay_workers = 1\nlockstep.replay_hot_standby = off\nshared_buffers = 1MB\n");
my $admin = LockstepSession->new($ours);
my $state = 'SELECT parallel FROM lockstep_stat_replay_pipeline';

sub says
{
	my ($words, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until($admin, sub {
		write_much($primary, 200);
		return index($admin->value($state), $words) == 0;
	}, $name);
}

# ---- What was seen last is out of date ----

write_much($primary, 200);
catch_up(LockstepSession->new($primary), $admin);
like($admin->value($state), qr/^no: (it is consistent|the minimum recovery point is reached), and lockstep\.replay_hot_standby is off$/,
	'helpers have nothing to do on a hot standby without the setting for it');
set_and_reload($ours, 'lockstep.replay_hot_standby' => 'on');
wait_for_value($admin, $state, 'not yet: it is looked at again after 64 records',
	'with it nothing is looked at while no WAL comes');
says('yes', 'then it is parallel');
like(slurp_file($ours->logfile), qr{LOG:  parallel replay begins after [0-9A-F]+/[0-9A-F]+, in hot standby, with replay helpers: 1$}m,
	'the log says when that began');

# the server itself names the library and its version
is($admin->value(q{SELECT version FROM pg_get_loaded_modules() WHERE module_name = 'lockstep'}),
	$admin->value('SHOW lockstep.version'), 'PostgreSQL knows the version') if $ours->pg_version >= 18;

# ---- A helper that does not end ----

my $helper;
wait_until(undef, sub { $helper = eval { worker_pid($ours, 'lockstep replay helper') } }, 'a helper is there');
catch_up(LockstepSession->new($primary), $admin); # it has begun no record then
kill 'STOP', $helper;
set_and_reload($ours, 'lockstep.enabled' => 'off');
says('no: lockstep.enabled is off', 'replay goes on by itself while its helper is stopped');
like(slurp_file($ours->logfile), qr{LOG:  parallel replay ends after [0-9A-F]+/[0-9A-F]+: lockstep\.enabled is off\n.*DETAIL:  Since it began [1-9][0-9]* records were replayed, [0-9]+ of them by replay helpers},
	'the log says when and why that ended, and what it did');
set_and_reload($ours, 'lockstep.enabled' => 'on');
says('not yet: helpers of the time before have not ended', 'and until that has ended');
kill 'CONT', $helper;
says('yes', 'then it is parallel again');
same_rows($primary, $ours, 'no row is lost by that');

# ---- What the startup process waits for ----

# Replays these statements with much before and after, again and again until this wait has grown by more
# than $least ms. Meanwhile is called once all is there and may be replayed.
sub waits
{
	my ($column, $least, $meanwhile, $name, @statements) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $sql = "SELECT $column FROM lockstep_stat_replay_pipeline";
	my $before = $admin->value($sql);
	return wait_until(undef, sub {
		$admin->value('SELECT pg_wal_replay_pause()');
		write_much($primary, 500);
		$primary->safe_psql('postgres', $_) for @statements;
		write_much($primary, 500);
		$primary->wait_for_catchup($ours, 'flush', $primary->lsn('flush'));
		$meanwhile->();
		$primary->wait_for_catchup($ours, 'replay', $primary->lsn('flush'));
		return $admin->value($sql) > $before + $least;
	}, $name);
}

# Pages are not in the 128 buffers when they are needed.
$primary->safe_psql('postgres',
	q{CREATE TABLE wide AS SELECT i, repeat('w', 1000) AS filler FROM generate_series(1, 8000) i});
waits('wait_io_ms', 0, sub { $admin->value('SELECT pg_wal_replay_resume()') },
	'replay that waits for a helper that reads or writes says so',
	q{UPDATE wide SET filler = 'x' || i WHERE i % 5 = 0}, q{UPDATE wide SET filler = repeat('w', 1000) WHERE i % 5 = 0});

# Sessions that are stopped at any moment hold the lock of the page that they read, more or less often.
my @readers = map { LockstepSession->new($ours) } 1 .. 4;
$primary->safe_psql('postgres', 'TRUNCATE often; INSERT INTO often SELECT generate_series(1, 150)');
catch_up(LockstepSession->new($primary), $admin);
$_->send('DO $$ BEGIN LOOP PERFORM count(*) FROM often; END LOOP; END $$') for @readers;
waits('wait_lock_ms', 10, sub {
	kill 'STOP', map { $_->pid } @readers;
	$admin->value('SELECT pg_wal_replay_resume()');
	select undef, undef, undef, 0.1;
	kill 'CONT', map { $_->pid } @readers;
}, 'replay that waits for a helper that waits for a lock says so', 'UPDATE often SET filler = i WHERE i = 1');

# ---- Background workers that others have ----

# Ends helpers, and takes what they leave.
set_and_reload($ours, 'lockstep.enabled' => 'off');
says('no: lockstep.enabled is off', 'helpers end');
wait_for_value($admin, 'SELECT count(*) FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL', 0, 'and are gone');
my $forced = $ours->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
my @takers = map { LockstepSession->new($ours, options => "-c $forced=on") } 1 .. 5;
$_->send('SELECT pg_sleep(10000)') for @takers;
wait_for_value($admin, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'}, 5,
	'parallel queries have all background workers');
set_and_reload($ours, 'lockstep.enabled' => 'on');
says('no: no background worker is free', 'one process replays');
like(slurp_file($ours->logfile), qr/LOG:  1 of 1 replay helpers cannot run: no background worker is free/, 'as the log says');
for my $taker (@takers)
{
	$taker->cancel;
	$taker->result;
	$taker->close;
}
says('yes', 'until they are free again');
same_rows($primary, $ours, 'and no row is lost by that');

# ---- A server that is not PostgreSQL's own ----

# A library that puts itself between the server and a resource manager's redo, as a patched server might.
sub library_with_redo_of
{
	my ($rmgr) = @_;
	my $path = PostgreSQL::Test::Utils::tempdir() . "/redo_$rmgr";
	append_to_file("$path.c", qq{
#include "postgres.h"
#include "access/rmgr.h"
#include "access/xlog_internal.h"
#include "fmgr.h"
PG_MODULE_MAGIC;
extern PGDLLEXPORT void _PG_init(void);
static void (*before) (XLogReaderState *record);
static void redo(XLogReaderState *record) { before(record); }
void _PG_init(void) { before = RmgrTable[RM_${rmgr}_ID].rm_redo; RmgrTable[RM_${rmgr}_ID].rm_redo = redo; }
});
	chomp(my $headers = `pg_config --includedir-server`);
	system_or_bail('cc', '-shared', '-fPIC', "-I$headers", '-o', "$path.so", "$path.c");
	return $path;
}

for my $case ([ 'HASH', 'lockstep, %s', 'another library has replaced the redo of a resource manager' ],
	[ 'HEAP', '%s, lockstep', 'another library had replaced the redo of heap or B-tree before this one was loaded' ])
{
	my ($rmgr, $order, $words) = @$case;
	$ours->append_conf('postgresql.conf', sprintf "shared_preload_libraries = '$order'\n", library_with_redo_of($rmgr));
	$ours->restart;
	$admin = LockstepSession->new($ours);
	says('no: the server is not as this library expects it', "replay is not parallel with another redo of $rmgr");
	like(slurp_file($ours->logfile), qr/WARNING:  parallel replay stays off: \Q$words\E\n.*HINT: /, 'the log says why');
	same_rows($primary, $ours, 'and replay goes on');
}

$_->stop for $ours, $primary;
done_testing();
