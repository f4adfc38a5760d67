# The rules of parallel replay (src/replay/README.md), each kept and then broken on purpose:
# what goes wrong without it is noticed here. Rules are broken in a library of its own
# (src/replay/broken_rule.h), since the one that is installed cannot.

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

# Most tries for a broken rule to be noticed: which process comes to a record first is chance.
my $TRIES = 30;

# Settings of a server that breaks the rule.
sub without
{
	my ($rule) = @_;
	return "dynamic_library_path = '$ENV{LOCKSTEP_BREAKABLE}:\$libdir'\nlockstep.broken_rule = $rule\n"
	  . ($rule =~ /^(stretch_end|facts)$/ ? $READING : $WORKERS);
}

# A test that passes once what is noticed without the rule was noticed.
sub bites
{
	my ($rule, $noticed, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for (1 .. $TRIES)
	{
		return pass("without rule '$rule' $name") if $noticed->();
	}
	return fail("without rule '$rule' $name");
}

# Starts a server that may fail, and leaves none behind that does.
sub comes_up
{
	my ($node) = @_;
	return 1 if $node->start(fail_ok => 1);
	system 'pg_ctl', '-s', '-m', 'immediate', '-D', $node->data_dir, 'stop'
	  if -e $node->data_dir . '/postmaster.pid';
	return 0;
}

# ---- The library that is installed has no such setting ----

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, without_checksums($primary));
# Without hints in the WAL: an image of the free space map comes before each truncation, and keeps from
# running ahead what is inserted after it.
$primary->append_conf('postgresql.conf',
	"wal_log_hints = off\nautovacuum = off\nallow_in_place_tablespaces = on\n"
	. "wal_keep_size = 4GB\nmax_wal_size = 10GB\ncheckpoint_timeout = 1h\nlockstep.broken_rule = order\n");
$primary->start;
like(slurp_file($primary->logfile),
	qr/invalid configuration parameter name "lockstep.broken_rule", removing it/,
	'the library that is installed knows no setting to break a rule');
is($primary->safe_psql('postgres', q{SELECT current_setting('lockstep.broken_rule', true)}),
	'', 'nor shows one');
$primary->safe_psql('template1', 'CREATE EXTENSION lockstep');

# ---- Rules 1, 6, 8, 10 and 14: files differ, or recovery fails; wal_log_hints is on, and there are no checksums ----

my @but = split /\n/, $primary->safe_psql('postgres', q{
	SELECT oid FROM pg_database WHERE datname = 'template1'});
$primary->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, k int, v text) WITH (fillfactor = 80);
	CREATE INDEX ON a (k);
	CREATE TABLE b (id serial PRIMARY KEY, u text, v text);
	CREATE INDEX ON b (u);
	CREATE TABLE shrinks (i int, filler text);
	INSERT INTO a SELECT g, g, repeat('x', 100) FROM generate_series(1, 4000) g;
	INSERT INTO shrinks SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g});
$primary->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION ''");
$primary->safe_psql('postgres', 'CREATE DATABASE moves TEMPLATE postgres');
my $backup = LockstepSession->new($primary);
$backup->value(q{SELECT pg_backup_start('kept', true)});
keep_data($primary, 'kept');

my $writes = q{
	DO $$ BEGIN
		FOR n IN 1 .. 2000 LOOP
			UPDATE a SET k = k + 1, v = v || 'y' WHERE id = 1 + (n * 37) % 4000;
			INSERT INTO b (u, v) VALUES (md5(n::text), repeat('z', n % 300));
			IF n % 50 = 0 THEN COMMIT; END IF;
		END LOOP;
	END $$;
};
$primary->safe_psql('postgres', $writes);
for (1 .. 5)
{
	$primary->safe_psql('postgres', $_) for 'DELETE FROM shrinks WHERE i > 50', 'VACUUM shrinks',
	  q{INSERT INTO shrinks SELECT g, repeat('y', 500) FROM generate_series(1, 1000) g};
}
for my $space (qw(elsewhere pg_default))
{
	$primary->safe_psql('moves', $writes);
	$primary->safe_psql('postgres', "ALTER DATABASE moves SET TABLESPACE $space");
}
$primary->safe_psql('moves', $writes);
my $label = $backup->value('SELECT labelfile FROM pg_backup_stop(false)');
$primary->safe_psql('postgres', $writes);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
keep_wal($primary, 'kept');

my $few   = "shared_buffers = 1MB\n";
my $stock = recovered($primary, 'kept', "lockstep.replay_workers = 0\n");
$stock->stop;

# Recovers without the rule. True if that is noticed.
sub differs
{
	my ($rule, $kept) = @_;
	my $node = copy_of($primary, $kept, without($rule) . $few);
	my $differs = 1;
	if (comes_up($node))
	{
		$node->stop;
		$differs = differing_files($stock, $node, @but) ne '';
	}
	$node->clean_node;
	return $differs;
}

ok(!differs('none', 'kept'), 'with all rules kept, files are those of stock');
for my $rule (qw(order extension size barrier files generation stretch_end facts))
{
	bites($rule, sub { differs($rule, 'kept') }, 'recovery fails or files differ');
}
$stock->clean_node;

# ---- Rule 4: free space maps and visibility maps are changed in the order of the WAL ----

# With checksums the first change of such a map after a checkpoint is logged as an image. What
# the next heap records enter in the map must come after it.
my $maps = PostgreSQL::Test::Cluster->new('maps');
$maps->init(extra => ['--data-checksums']);
$maps->append_conf('postgresql.conf', "autovacuum = off\nmax_wal_size = 10GB\n");
$maps->start;
my @tables = map { "f$_" } 1 .. 40;
$maps->safe_psql('postgres', join '', map { "CREATE TABLE $_ AS SELECT g, repeat('x', 1000) AS t "
	  . "FROM generate_series(1, 200) g; DELETE FROM $_ WHERE g % 3 <> 0; VACUUM $_;\n" } @tables);
# Bits that are cleared and set again and again, and a map that is missing when recovery begins: replay makes
# it anew.
$maps->safe_psql('postgres', join '', map { "CREATE TABLE $_ WITH (fillfactor = 50) AS "
	  . "SELECT g AS k, repeat('x', 300) AS t FROM generate_series(1, 1500) g; VACUUM $_;\n" } qw(seen unseen));
my $lost = $maps->safe_psql('postgres', q{SELECT pg_relation_filepath('unseen') || '_vm'});
$maps->safe_psql('postgres', 'CHECKPOINT');
keep_data($maps, 'maps');
unlink $maps->backup_dir . "/maps/$lost" or die "$lost: $!";
$maps->safe_psql('postgres', join '', map { "INSERT INTO $_ SELECT g, repeat('y', 900) "
	  . "FROM generate_series(1, 300) g;\n" } @tables);
for my $n (1 .. 4)
{
	$maps->safe_psql('postgres', $_) for map { ("UPDATE $_ SET t = repeat('z', 300) WHERE k % 40 = $n",
		"SELECT FROM $_ WHERE k % 40 = $n + 10 FOR UPDATE", "VACUUM $_",
		"DELETE FROM $_ WHERE k % 400 = $n", "INSERT INTO $_ VALUES (-$n, '')") } qw(seen unseen);
}
$maps->stop('immediate');
keep_wal($maps, 'maps');
my $maps_stock = recovered($maps, 'maps', "lockstep.replay_workers = 0\n");
$maps_stock->stop;

sub maps_differ
{
	my ($conf) = @_;
	my $node = recovered($maps, 'maps', $conf);
	$node->stop;
	my $different = differing_files($maps_stock, $node);
	$node->clean_node;
	return $different;
}

is(maps_differ($WORKERS), '', 'free space maps and visibility maps are those of stock');
bites('map_image', sub { maps_differ(without('map_image')) =~ /_fsm/ }, 'they differ');
$maps_stock->clean_node;
$maps->clean_node;

# ---- Rule 4: bits are cleared after what names the map's page ----

# With checksums or wal_log_hints vacuum logs an image of the free space map as well, which is a barrier.
my $bits = PostgreSQL::Test::Cluster->new('bits');
$bits->init(without_checksums($bits));
$bits->append_conf('postgresql.conf', "autovacuum = off\nmax_wal_size = 10GB\nwal_recycle = off\n");
$bits->start;
# Tables of 400 pages, each of the last 200 with a dead row, and their bits of the visibility map cleared.
my @vacuumed = map { "v$_" } 1 .. 3;
$bits->safe_psql('postgres', 'CREATE EXTENSION pg_visibility');
for my $table (@vacuumed)
{
	$bits->safe_psql('postgres', $_)
	  for "CREATE TABLE $table AS SELECT g AS k, repeat('x', 1900) AS filler FROM generate_series(1, 1600) g",
	  "VACUUM $table", "DELETE FROM $table WHERE k > 800 AND k % 4 = 0";
}
$bits->safe_psql('postgres', 'CHECKPOINT');
keep_data($bits, 'bits');
# Vacuum logs an image of the map, with bits of the first pages, and sets more bits. The rows that are deleted in the
# middle of that clear the former. The end of a vacuum would be a barrier.
for my $table (@vacuumed)
{
	my ($vacuum, $writer) = map { LockstepSession->new($bits) } 1 .. 2;
	$vacuum->query("SET $_") for 'vacuum_cost_delay = 100', 'vacuum_cost_limit = 1';
	$vacuum->send("VACUUM $table");
	wait_until($writer, "SELECT all_visible FROM pg_visibility_map('$table', 201)", 'vacuum sets bits');
	$writer->value("DELETE FROM $table WHERE k <= 800 AND k % 4 = 1");
	$vacuum->cancel;
	$vacuum->result;
	$_->close for $vacuum, $writer;
}
$bits->stop('immediate');
keep_wal($bits, 'bits');
my $bits_stock = recovered($bits, 'bits', "lockstep.replay_workers = 0\n");
$bits_stock->stop;

sub bits_differ
{
	my ($conf) = @_;
	my $node = recovered($bits, 'bits', $conf);
	$node->stop;
	my $different = differing_files($bits_stock, $node);
	$node->clean_node;
	return $different;
}

is(bits_differ($WORKERS), '', 'visibility maps are those of stock');
# minors of later majors register the map's page as a block of the record that clears bits: rule 1
bites('map_clear', sub { bits_differ(without('map_clear')) =~ /_vm/ }, 'they differ') if $bits->pg_version < 17;
$bits_stock->clean_node;
$bits->clean_node;

# ---- Rule 9: a standby runs ahead up to its minimum recovery point ----

my $standby = new_standby($primary, conf => $WORKERS);
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->safe_psql('postgres', $writes);
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
$primary->safe_psql('postgres', $writes);
$primary->wait_for_catchup($standby, 'flush', $primary->lsn('flush'));
$standby->stop;
keep_data($standby, 'behind');
my ($control) = run_command([ 'pg_controldata', $standby->data_dir ]);
my ($point) = $control =~ /Minimum recovery ending location:\s+(\S+)/;

# What a restart of it dispatches before it is consistent.
sub dispatched
{
	my ($conf) = @_;
	my $node = copy_of($standby, 'behind', "primary_conninfo = ''\n$conf");
	$node->start;
	my @answer = map { pipeline($node, $_, 'template1') }
	  'dispatched > 1000', "dispatched_until <= '$point'", 'parallel';
	$node->stop;
	$node->clean_node;
	return @answer;
}

my @kept = dispatched($WORKERS);
is($kept[0], 't', 'a standby that starts dispatches records');
is($kept[1], 't', 'none beyond its minimum recovery point');
is($kept[2], 'no: the minimum recovery point is reached, and lockstep.replay_hot_standby is off', 'and says so');
bites('recovery_point', sub { (dispatched(without('recovery_point')))[1] eq 'f' }, 'it runs on beyond it');
$standby->clean_node;

# ---- Rule 9: a backup runs ahead up to its end ----

my $warns = qr/xlog min recovery request \S+ is past current point/;

# A standby that is restored, with the WAL in pg_wal, or streamed if there is none.
sub restored
{
	my ($conf, $streams) = @_;
	my $node = copy_of($primary, 'kept', "$few$conf");
	append_to_file($node->data_dir . '/backup_label', "$label\n");
	$node->enable_streaming($primary) if $streams;
	$node->set_standby_mode;
	unlink glob $node->data_dir . '/pg_wal/[0-9A-F]*' if $streams;
	$node->start;
	return $node;
}

for my $streams (0, 1)
{
	my $what = $streams ? 'streamed backup' : 'backup with its WAL';
	my $node = restored($WORKERS, $streams);
	is(pipeline($node, 'dispatched > 1000', 'template1'), 't', "a $what runs ahead");
	like(pipeline($node, 'parallel', 'template1'),
		qr/^no: (it is consistent|the minimum recovery point is reached)/, 'up to its end');
	unlike(slurp_file($node->logfile), $warns, 'and nobody is told of pages ahead of it');
	if ($streams)
	{
		$primary->wait_for_catchup($node, 'replay', $primary->lsn('flush'));
		my $rows = 'SELECT md5(string_agg(a::text, $$,$$ ORDER BY id)) FROM a';
		is($node->safe_psql('postgres', $rows), $primary->safe_psql('postgres', $rows),
			'its rows are the primary\'s');
	}
	$node->stop;
	$node->clean_node;
}
bites('backup_point', sub {
	my $node = restored(without('backup_point'), 0);
	my $noticed = slurp_file($node->logfile) =~ $warns;
	$node->stop;
	$node->clean_node;
	return $noticed;
}, 'processes that write pages warn of them');
$primary->stop;
$primary->clean_node;

# ---- Damaged pages: rules 11 to 13 ----

my $holes = PostgreSQL::Test::Cluster->new('holes');
$holes->init(without_checksums($holes));
$holes->append_conf('postgresql.conf', "autovacuum = off\nfull_page_writes = off\nmax_wal_size = 10GB\n");
$holes->start;
$holes->safe_psql('postgres', q{
	CREATE EXTENSION pg_surgery;
	CREATE TABLE z (i int, filler text) WITH (fillfactor = 50);
	INSERT INTO z SELECT g, repeat('x', 500) FROM generate_series(1, 3000) g;
	CREATE TABLE y (i int);
	CHECKPOINT});
my $z = $holes->safe_psql('postgres', q{SELECT pg_relation_filepath('z')});
for my $name (qw(zeroed damaged changed))
{
	keep_data($holes, $name);
}
overwrite($holes->backup_dir . "/zeroed/$z", 0, "\0" x (8192 * 200));
overwrite($holes->backup_dir . "/damaged/$z", 8192, "\xff" x 8192);
overwrite($holes->backup_dir . "/changed/$z", 8192 * 3 - 100, 'y');

# One record changes the damaged page, two the changed one: the first is checked, the second
# is an image of the whole page.
my $work = 'INSERT INTO y SELECT g FROM generate_series(1, 20000) g';
$holes->safe_psql('postgres', $_) for $work, q{DELETE FROM z WHERE ctid = '(1,1)'}, $work, q{
	SET wal_consistency_checking = heap;
	BEGIN;
	DELETE FROM z WHERE ctid = '(2,1)';
	SELECT heap_force_freeze('z'::regclass, ARRAY['(2,2)']::tid[]);
	COMMIT}, $work;
keep_wal($holes, $_) for qw(damaged changed);
$holes->safe_psql('postgres', $_) for 'UPDATE z SET i = -i', $work;
$holes->stop('immediate');
keep_wal($holes, 'zeroed');

# What the log says of a recovery, and whether it came to its end.
sub log_of
{
	my ($name, $conf) = @_;
	my $node = copy_of($holes, $name, $conf . "log_min_messages = debug1\n");
	my $ends = comes_up($node);
	my $log  = slurp_file($node->logfile);
	$node->stop if $ends;
	$node->clean_node;
	return ($ends, $log);
}

my $by_helper = qr/is uninitialized\n[^\n]*CONTEXT: [^\n]*in a replay helper/;
my ($ends, $log) = log_of('zeroed', $WORKERS);
like($log, qr/page \d+ of relation \S+ is uninitialized/, 'a page of zeros is noted');
unlike($log, $by_helper, 'by the startup process, which alone keeps a list of such pages');
bites('new_page', sub { (log_of('zeroed', without('new_page')))[1] =~ $by_helper },
	'a helper notes it, in vain');

($ends, $log) = log_of('damaged', $WORKERS);
ok(!$ends, 'a page that a helper cannot read ends recovery');
like($log, qr/FATAL:  invalid page in block 1 of relation/, 'with its message');
like($log, qr/shutting down due to startup process failure/, 'and the server with it, as in stock');
bites('failure', sub {
	my ($ends, $log) = log_of('damaged', without('failure'));
	return $ends && $log =~ /LOG:  a replay helper has failed: invalid page in block 1 of relation/;
}, 'recovery ends well, and only the log says that a helper has failed');
bites('leave', sub {
	my ($ends, $log) = log_of('damaged', without('leave'));
	return !$ends && $log =~ /FATAL:  a replay helper ended in the middle of a WAL record\n(?:.*DETAIL: .*\n)?.*CONTEXT:  WAL redo at \S+, in a replay helper/;
}, 'recovery ends with the record at which the helper did');

($ends, $log) = log_of('changed', $WORKERS);
ok(!$ends, 'a page that is not the primary\'s ends recovery');
# the relation is named in one of two ways, by a helper or by PostgreSQL
like($log, qr/FATAL:  inconsistent page found, \w+ \S+, forknum 0, blkno 2/, 'with its message');
bites('page_check', sub { (log_of('changed', without('page_check')))[0] }, 'recovery ends well');

done_testing();
