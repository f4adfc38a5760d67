# pg_rewind where helpers replay ahead of their turn: against a standby that was promoted, of one, and of a
# standby whose pages are beyond the fork.

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

my $archive = PostgreSQL::Test::Utils::tempdir();
my $one = hot_primary('one', "wal_log_hints = on\nrestore_command = 'cp $archive/%f %p'\n");
my $two = new_standby($one, name => 'two', conf => $HOT);

# All that is written on the way to a failover.
sub write_some
{
	my ($node) = @_;
	mixed_load($node, 100)->finish or die 'pgbench failed';
	$node->safe_psql('postgres', 'VACUUM mixed');
	return;
}

# A stopped server becomes a standby of the other, with its own settings.
sub rewind
{
	my ($node, $source) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$source->safe_psql('postgres', 'CHECKPOINT');
	my $settings = slurp_file($node->data_dir . '/postgresql.conf');
	my $done = command_ok([ 'pg_rewind', '--target-pgdata', $node->data_dir, '--source-server',
		$source->connstr('postgres'), '--no-sync' ], $node->name . ' is rewound');
	open my $file, '>', $node->data_dir . '/postgresql.conf' or die $!;
	print $file $settings, $HOT, "primary_conninfo = '", $source->connstr, ' application_name=', $node->name,
	  "'\n";
	close $file or die $!;
	$node->set_standby_mode;
	$node->start;
	return $done;
}

sub is_whole
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS amcheck');
	is($node->safe_psql('postgres', q{SELECT * FROM pg_class c, verify_heapam(c.oid)
		WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'}), '',
		$node->name . ': tables have no fault');
	return is($node->safe_psql('postgres', q{SELECT bt_index_check(indexrelid, true) FROM pg_index
		JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace}) =~ s/\s//gr,
		'', 'nor indexes');
}

# ---- An old primary, against a standby that was promoted at work ----

my ($old, $admin) = stands_still($one, $two, after => sub { write_some($one) });
$_->close for $old, $admin;
$two->promote;
write_some($_) for $one, $two;
$one->stop;
rewind($one, $two);
same_rows($two, $one, 'it follows the new primary');

# ---- One that had helpers itself ----

($old, $admin) = stands_still($two, $one, after => sub { write_some($two) });
$_->close for $old, $admin;
$one->promote;
write_some($_) for $two, $one;
is_whole($one);
$one->stop;
rewind($one, $two);
($old, $admin) = stands_still($two, $one, after => sub { write_some($two) });
$_->close for $old, $admin;
same_rows($two, $one, 'it has helpers again');

# ---- A standby whose pages are beyond the fork ----

# Replay stands still before the fork, as a stock one could; records beyond it have been executed.
my $new = new_standby($two, name => 'new', conf => "lockstep.replay_workers = 0\narchive_mode = on\n"
	. "archive_command = 'cp %p $archive/%f'\n");
$two->safe_psql('postgres', 'SELECT pg_switch_wal()');
($old, $admin) = stands_still($two, $one, after => sub {
	$two->wait_for_catchup($new, 'replay', $two->lsn('flush'));
	set_and_reload($new, primary_conninfo => '');
	$new->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or die 'it receives still';
	write_much($two, 20000);
});
my $fork = $new->safe_psql('postgres', 'SELECT pg_last_wal_replay_lsn()');
is($admin->value("SELECT pg_last_wal_replay_lsn() < '$fork'"), 't', 'it stands before the fork');
wait_until($admin, "SELECT dispatched_until > '$fork' FROM lockstep_stat_replay_pipeline",
	'records run ahead beyond it');
$one->stop('fast');
$_->vanish for $old, $admin;
$two->stop('immediate');
$new->promote;
write_some($new);
my $segment = $new->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');
write_some($new);
$new->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver")
  or die 'it archives nothing';
# pg_ctl of 18 takes this end for that at a recovery target
system_log('pg_ctl', '-w', '-D', $one->data_dir, '-l', $one->logfile, 'start');
ok(!-e $one->data_dir . '/postmaster.pid', 'it does not open on the new timeline');
like(slurp_file($one->logfile), qr/requested timeline \d+ does not contain minimum recovery point/,
	'and says so');
rewind($one, $new);
same_rows($new, $one, 'it does once it is rewound');
$one->promote;
is_whole($one);

$_->stop for $one, $new;

done_testing();
