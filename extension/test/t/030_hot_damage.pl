# What a hot standby comes across that is not as it should be, while helpers execute records ahead of their
# turn: it ends as a stock standby with the same bytes does, and says the same.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use File::Basename;
use File::Copy;
use File::Path 'rmtree';
use LockstepReplay;
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

# Changes are not logged as images of pages, which would mend the damage.
my $primary = hot_primary('primary', "full_page_writes = off\nmax_locks_per_transaction = 10\n");
$primary->safe_psql('postgres', q{
	CREATE TABLE victim (i int, filler text) WITH (autovacuum_enabled = off);
	INSERT INTO victim SELECT g, repeat('x', 500) FROM generate_series(1, 300) g;
	CREATE TABLE grows (i int, filler text);
	CHECKPOINT});
my $victim = $primary->safe_psql('postgres', q{SELECT pg_relation_filepath('victim')});
my $number = 0;

sub standbys
{
	my ($conf) = @_;
	$primary->backup('at' . ++$number);
	return map {
		my $node = PostgreSQL::Test::Cluster->new("$_$number");
		$node->init_from_backup($primary, "at$number", has_streaming => 1);
		$node->append_conf('postgresql.conf', ($_ eq 'ours' ? $HOT : "lockstep.replay_workers = 0\n") . $conf);
		$node
	} qw(stock ours);
}

# Starts a standby that finds all its WAL in pg_wal, and waits until $ready returns, which gets the log's size
# before that. If all was replayed before a
# helper was there, as on a busy machine, it is done again from the same files.
sub start_helped
{
	my ($node, $ready) = @_;
	my $cold = $node->basedir . '/cold';
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $cold);
	for my $try (1 .. 10)
	{
		my $said = -e $node->logfile ? -s $node->logfile : 0;
		$node->start;
		$ready->($said);
		last if executed($node) > 0 || $try == 10;
		$node->stop('immediate');
		rmtree($node->data_dir);
		PostgreSQL::Test::RecursiveCopy::copypath($cold, $node->data_dir);
		chmod 0700, $node->data_dir or die $!;
	}
	rmtree($cold);
	return;
}

sub is_down { return !-e $_[0]->data_dir . '/postmaster.pid'; }

# What ended it, as the log says: errors of the server's processes, without those of its sessions.
sub last_words
{
	my ($node) = @_;
	my @said = slurp_file($node->logfile) =~ /(?:FATAL|PANIC):  (.*)/g;
	my %said = map { $_ => 1 } grep { !/^terminating|^the database system|conflict with recovery/ } @said;
	return join '; ', sort keys %said;
}

# A server that ended with an error.
sub remove
{
	my (@nodes) = @_;
	for my $node (@nodes)
	{
		$node->_update_pid(is_down($node) ? 0 : 1);
		$node->stop('fast') if !is_down($node);
		$node->clean_node;
	}
	return;
}

# Both standbys, with that damage, come to these statements and end. In ours replay stands still before
# that, while helpers go on; $meanwhile looks at it then.
sub both_end
{
	my ($what, $damage, $statement, $meanwhile) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($stock, $ours) = standbys('');
	for my $node ($stock, $ours)
	{
		$node->start;
		$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
		$node->stop;
		$damage->($node->data_dir . "/$victim");
		$node->start;
	}
	my ($old, $admin) = stands_still($primary, $ours, after => sub {
		write_much($primary, 100);
		$primary->safe_psql('postgres', $statement);
		write_much($primary, 1000);
	});
	$meanwhile->($ours, $old) if $meanwhile;
	$_->vanish for $old, $admin;
	wait_until(undef, sub { is_down($stock) && is_down($ours) }, "both standbys end at $what");
	is(last_words($ours), last_words($stock), 'with the same words');
	isnt(last_words($ours), '', 'which are: ' . last_words($ours));
	my $log = slurp_file($ours->logfile);
	remove($stock, $ours);
	return $log;
}

# ---- Damaged files ----

my $log = both_end('a missing file', sub { unlink $_[0] or die $! },
	'DELETE FROM victim WHERE i = 1');
like($log, qr/WARNING:  page \d+ of relation \S+ does not exist\n.*CONTEXT:  WAL redo at/,
	'the record is named');

my $in_helper = qr/CONTEXT:  WAL redo at \S+ for Heap\/\w+: .*, in a replay helper/;
$log = both_end('an invalid page', sub { overwrite($_[0], 8192 * 2, "\xff" x 8192) },
	'DELETE FROM victim WHERE i = 35', sub {
	my ($ours, $session) = @_;
	$ours->wait_for_log(qr/a replay helper has failed: invalid page in block 2 of relation/);
	pass('a helper says at once what it has found');
	is($session->value('SELECT count(*) FROM often'), 1, 'and sessions read until its turn comes');
});
like($log, qr/FATAL:  invalid page in block 2 of relation \S+\n.*$in_helper/,
	'with the record, and that a helper met it');
unlike($log, qr/refcount leak/, 'which has left nothing pinned');

# Each helper meets a page that it cannot read. The words are those of the record that comes first.
for my $round (1 .. 4)
{
	both_end('the first of two invalid pages', sub {
		overwrite($_[0], 8192 * 2, "\xff" x 8192);
		overwrite($_[0], 8192 * 5, "\xff" x 8192);
	}, 'DELETE FROM victim WHERE i = ' . (80 + $round) . '; INSERT INTO much SELECT generate_series(1, 60); '
	  . 'DELETE FROM victim WHERE i = ' . (35 + $round), sub {
		my ($ours) = @_;
		# which helper takes which record is chance, and that both have failed before it is replay's turn
		for (1 .. 50)
		{
			last if (() = slurp_file($ours->logfile) =~ /a replay helper has failed: invalid page/g) == 2;
			select undef, undef, undef, 0.1;
		}
	});
}

# A page of another time: its header is valid, the row is not there.
$log = both_end('a page that lacks a row', sub {
	my ($file) = @_;
	my $bytes = slurp_file($file);
	# pd_lower: no line pointer is left
	overwrite($file, 8192 * 3 + 12, pack 'S', 24);
}, 'DELETE FROM victim WHERE i = 50');
like($log, qr/PANIC:  invalid lp\n.*$in_helper/, 'with the record, and that a helper met it');

# ---- Damaged WAL ----

my $at = 'SELECT pg_last_wal_replay_lsn()';

# All of it lies in pg_wal, with one record changed: of a row of much. Returns in how many of its starts the
# helpers have read WAL.
sub both_stop_at_damage
{
	my ($reading) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($stock, $ours) = standbys("primary_conninfo = ''\nwal_retrieve_retry_interval = 100ms\n"
		. "lockstep.replay_read_helpers = $reading\n");
	write_much($primary, 20000);
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	my ($file, $offset);
	do
	{
		write_much($primary, 1000);
		($file, $offset) = split / /, $primary->safe_psql('postgres', q{
			SELECT file_name || ' ' || file_offset FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())});
	} while $offset % 8192 < 100 || $offset % 8192 > 8000;
	write_much($primary, 4000);
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	write_much($primary, 1);
	my $end = $primary->lsn('flush');
	for my $node ($stock, $ours)
	{
		my $wal = $node->data_dir . '/pg_wal';
		copy($_, $wal) or die "$_: $!" for glob $primary->data_dir . '/pg_wal/0*';
		overwrite("$wal/$file", $offset + 30, "\xee");
	}
	my $wrong = qr/LOG:  (incorrect resource manager data checksum in record at \S+)/;
	$stock->start;
	start_helped($ours, sub { $ours->wait_for_log($wrong, $_[0]) });
	$stock->wait_for_log($wrong);
	is((slurp_file($ours->logfile) =~ $wrong)[0], (slurp_file($stock->logfile) =~ $wrong)[0],
		'a damaged record is named as by a stock standby');
	is($ours->safe_psql('postgres', $at), $stock->safe_psql('postgres', $at), 'replay stands before it');
	cmp_ok(executed($ours), '>', 0, 'helpers have executed what came before');
	is(sums($ours), sums($stock), 'and what was replayed can be read');
	is($ours->safe_psql('postgres', "SELECT min_recovery_end_lsn > ($at) FROM pg_control_recovery()"), 't',
		'its minimum recovery point is beyond the record');
	for my $node ($stock, $ours)
	{
		$node->stop('fast');
		ok($node->start(fail_ok => 1), $node->name . ' can be stopped, and comes up again');
	}
	is(sums($ours), sums($stock), 'with what was replayed');
	for my $node ($stock, $ours)
	{
		copy($primary->data_dir . "/pg_wal/$file", $node->data_dir . '/pg_wal') or die $!;
		wait_until(undef, sub { $node->safe_psql('postgres', "SELECT ($at) >= '$end'") eq 't' },
			$node->name . ' goes on with the record as it was');
		$node->promote;
		is(sums($node), sums($primary), 'and has all rows when it is promoted');
	}
	my @read = slurp_file($ours->logfile) =~ /Records that they read: ([1-9]\d*)\./g;
	remove($stock, $ours);
	return @read;
}

is(both_stop_at_damage('off'), 0, 'helpers read no WAL unless they are to');
# which process comes to read WAL first is chance
my $reads = 0;
for (1 .. 5)
{
	last if $reads += both_stop_at_damage('on');
}
cmp_ok($reads, '>', 0, 'and else they do');

# The last segment ends in the middle of a record, and is marked as complete, as in a backup of a standby
# that was made with --wal-method=fetch.
my ($ours) = (standbys("primary_conninfo = ''\nwal_retrieve_retry_interval = 100ms\n"))[1];
my $wal = $ours->data_dir . '/pg_wal';
write_much($primary, 20000);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
my $file = $primary->safe_psql('postgres', 'SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
write_much($primary, 8000);
for my $segment (glob $primary->data_dir . '/pg_wal/0*')
{
	copy($segment, $wal) or die "$segment: $!" if basename($segment) le $file;
}
my $bytes = slurp_file("$wal/$file");
# a page's header says that it begins with the rest of a record, and how much that is
my ($cut) = grep { my ($info, $rest) = unpack 'x2 S x12 L', substr $bytes, $_, 24; $info & 1 && $rest > 8 }
  map { $_ * 8192 } reverse 1 .. 40;
overwrite("$wal/$file", $cut + 28, "\0" x (length($bytes) - $cut - 28));
append_to_file("$wal/archive_status/$file.done", '');
# It waits there only once it has read all that there is.
start_helped($ours, sub {
	wait_until(undef, sub { $ours->safe_psql('postgres', q{SELECT wait_event FROM pg_stat_activity
		WHERE backend_type = 'startup'}) eq 'RecoveryRetrieveRetryInterval' }, 'replay comes to the end of it');
});
cmp_ok(executed($ours), '>', 0, 'helpers work on WAL that has been cut');
is($ours->safe_psql('postgres', "SELECT min_recovery_end_lsn <= ($at) FROM pg_control_recovery()"), 't',
	'the minimum recovery point is not beyond what there is of it');
$ours->stop('immediate');
ok($ours->start(fail_ok => 1), 'so it comes up after a crash');
remove($ours);

# ---- Too little of something ----

# A file that may not grow is to PostgreSQL what a full disk is.
(my $stock, $ours) = standbys('');
my $KB = 6 * 1024;
for my $node ($stock, $ours)
{
	local $ENV{PGDATA} = $node->data_dir;
	local $ENV{PGAPPNAME} = $node->name;	# by which wait_for_catchup() knows it
	my $start = "pg_ctl -w -l '" . $node->logfile . "' start >/dev/null";
	system('bash', '-c', "ulimit -S -f $KB; exec $start") == 0 or die 'it does not start';
	$node->_update_pid(1);
}
$primary->wait_for_catchup($_, 'replay', $primary->lsn('flush')) for $stock, $ours;
$ours->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
write_much($primary, 20000);
$primary->safe_psql('postgres',
	q{INSERT INTO grows SELECT g, repeat('x', 1000) FROM generate_series(1, 8000) g});
write_much($primary, 20000);
$primary->wait_for_catchup($ours, 'flush', $primary->lsn('flush'));
$ours->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
wait_until(undef, sub { is_down($stock) && is_down($ours) }, 'both standbys end where a file cannot grow');
is(last_words($ours), last_words($stock), 'with the same words: ' . last_words($ours));
like(slurp_file($ours->logfile), qr/FATAL:  could not extend.*\n(?:.*HINT:.*\n)?.*CONTEXT:  appending a block ahead of replay, for the WAL record at \S+\n/,
	'and which record needed the block, since another one is replayed');
for my $node ($stock, $ours)
{
	$node->_update_pid(0);
	$node->start;
	same_rows($primary, $node, $node->name . ' goes on when there is room');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM grows'), 8000, 'with all rows');
}
cmp_ok(executed($ours), '>', 0, 'helpers have executed some of it');
remove($stock, $ours);

# Locks of a session leave none for replay.
$primary->safe_psql('postgres', q{DO $$ BEGIN FOR n IN 1 .. 2500 LOOP
	EXECUTE format('CREATE TABLE locked%s ()', n); IF n % 100 = 0 THEN COMMIT; END IF; END LOOP; END $$});
($stock, $ours) = standbys('');
$_->start for $stock, $ours;
my @lockers;
for my $node ($stock, $ours)
{
	$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
	push @lockers, my $session = LockstepSession->new($node);
	$session->query('BEGIN');
	$session->query(q{DO $$ BEGIN FOR n IN 200 .. 2500 LOOP
		BEGIN EXECUTE format('LOCK TABLE locked%s IN ACCESS SHARE MODE', n);
		EXCEPTION WHEN out_of_memory THEN EXIT; END; END LOOP; END $$});
}
$primary->safe_psql('postgres', 'INSERT INTO much SELECT generate_series(1, 20000)');
$primary->safe_psql('postgres', q{DO $$ BEGIN FOR n IN 1 .. 150 LOOP
	EXECUTE format('LOCK TABLE locked%s IN ACCESS EXCLUSIVE MODE', n); END LOOP; END $$});
wait_until(undef, sub { is_down($stock) && is_down($ours) }, 'both standbys end without memory for locks');
$_->vanish for @lockers;
is(last_words($ours), last_words($stock), 'with the same words: ' . last_words($ours));
for my $node ($stock, $ours)
{
	$node->_update_pid(0);
	$node->start;
	same_rows($primary, $node, $node->name . ' goes on when it is started again');
}
remove($stock, $ours);

# No background worker is free.
$primary->append_conf('postgresql.conf', 'max_worker_processes = 1');
$primary->restart;
($ours) = (standbys("lockstep.replay_workers = 16\nmax_worker_processes = 1\n"))[1];
$ours->start;
write_much($primary, 20000);
same_rows($primary, $ours, 'with more helpers than background workers replay goes on');
is(pipeline($ours, 'parallel'), 'no: no background worker is free', 'and the view says why');
like(slurp_file($ours->logfile), qr/WARNING:  lockstep\.replay_workers is 16, but max_worker_processes \(1\) leaves background workers for 0/,
	'as the log does');
remove($ours);
$primary->stop;

done_testing();
