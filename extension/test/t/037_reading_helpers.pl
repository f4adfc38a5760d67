# Helpers read WAL for the startup process (lockstep.replay_read_helpers). Whatever they come across that
# they cannot read, recovery ends where stock's ends, and says the same.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepReplay;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $STOCK = "lockstep.replay_workers = 0\n";

# How many records helpers have read, as the log says.
sub read_by_helpers
{
	my ($node) = @_;
	my $sum = 0;
	$sum += $_ for slurp_file($node->logfile) =~ /Records that they read: (\d+)\./g;
	return $sum;
}

# What the startup process said of the WAL, and where recovery ended.
sub end_of_recovery
{
	my ($node) = @_;
	my ($said) = slurp_file($node->logfile) =~ /(LOG:  redo starts at.*LOG:  redo done at \S+)/s
	  or die 'recovery has not ended: ' . $node->logfile;
	return join "\n", grep { !/parallel replay/ } $said =~ /LOG:  (.*)/g;
}

# ---- WAL of many kinds, with places for damage ----

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, extra => ['--wal-segsize=1']);
$primary->append_conf('postgresql.conf',
	"autovacuum = off\nwal_keep_size = 1GB\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\nlockstep.replay_workers = 0\n");
$primary->start;
$primary->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, k int, v text) WITH (fillfactor = 80);
	CREATE INDEX ON a (k);
	INSERT INTO a SELECT g, g, repeat('x', 100) FROM generate_series(1, 4000) g;
	CREATE TABLE wide (i int, filler text);
	ALTER TABLE wide ALTER filler SET STORAGE EXTERNAL;
	CHECKPOINT});
# no page of it is newer than WAL that is damaged
keep_data($primary, 'crash');
my $writes = q{
	DO $$ BEGIN
		FOR n IN 1 .. 1000 LOOP
			UPDATE a SET k = k + 1, v = v || 'y' WHERE id = 1 + (n * 37) % 4000;
			IF n % 100 = 0 THEN COMMIT; END IF;
		END LOOP;
	END $$;
	INSERT INTO wide SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 20) g;
	CREATE TABLE goes AS SELECT * FROM a WHERE id < 100;
	DROP TABLE goes;
};
# much, as helpers need time to start
$primary->safe_psql('postgres', $writes) for 1 .. 30;
my @places;		# where a record begins: file, and offset in it
for (1 .. 60)
{
	last if @places >= 4;
	$primary->safe_psql('postgres', $writes);
	my ($file, $offset) = split / /, $primary->safe_psql('postgres', q{
		SELECT file_name || ' ' || file_offset FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())});
	# its header and what comes after are on one page, which is neither the file's first nor its last
	push @places, [ $file, $offset ]
	  if $offset % 8192 > 100 && $offset % 8192 < 8000 && $offset > 16384 && $offset < 1024 * 1024 - 16384;
}
die 'no places' if @places < 4;
$primary->safe_psql('postgres', $writes) for 1 .. 3;
my $sums = q{SELECT (SELECT md5(string_agg(a::text, ',' ORDER BY id)) FROM a),
	(SELECT md5(string_agg(w::text, ',' ORDER BY i, filler)) FROM wide w)};
my $expected = $primary->safe_psql('postgres', $sums);
$primary->stop('immediate');
keep_wal($primary, 'crash');

# Files that differ. Free space maps are hints, and may differ between two recoveries by stock
# (022_replay_hostile.pl); 021_replay_rules.pl looks at these maps.
sub files_differ
{
	return join ' ', grep { !/_fsm/ } split / /, differing_files(@_);
}

# ---- Nothing is wrong ----

my $stock = recovered($primary, 'crash', $STOCK);
$stock->stop;
my $ours;
# on a busy machine helpers may come too late
for (1 .. 10)
{
	$ours->clean_node if $ours;
	$ours = recovered($primary, 'crash', $READING);
	$ours->stop;
	last if read_by_helpers($ours) > 1000;
}
cmp_ok(read_by_helpers($ours), '>', 1000, 'helpers have read WAL');
is(end_of_recovery($ours), end_of_recovery($stock), 'it ends as stock does');
is(files_differ($stock, $ours), '', "files are stock's");
$ours->start;
is($ours->safe_psql('postgres', $sums), $expected, 'rows are those before the crash');
$ours->stop;

my $off = recovered($primary, 'crash', "${READING}lockstep.replay_read_helpers = off\n");
is($off->safe_psql('postgres', $sums), $expected, 'so they are without the setting');
$off->stop;
is(read_by_helpers($off), 0, 'and helpers read nothing');
my $auto = recovered($primary, 'crash', $WORKERS);
$auto->stop;
is(read_by_helpers($auto), 0, 'nor by default, since little of this WAL is images');
$_->clean_node for $stock, $ours, $off, $auto;

# ---- Damage ----

# Bytes at a distance from a record's begin, or from the begin of the next page.
my @damages = (
	[ 'a record whose checksum is wrong', 30, "\xee" ],
	[ 'a record of no length', 0, pack 'L', 0 ],
	[ 'a record of an impossible length', 0, pack 'L', 0x3fffffff ],
	[ 'a record that names no resource manager', 17, "\x7f" ],
	[ 'a record that comes after another one', 8, pack 'Q', 4711 ],
	[ 'a page that is none', 'page', 0, "\0" x 8192 ],
	[ 'a page with another magic number', 'page', 0, pack 'S', 4711 ],
	[ 'a page with unknown flags', 'page', 2, pack 'S', 0x8000 ],
	[ 'a page of a later timeline', 'page', 4, pack 'L', 5 ],
	[ 'a page of no timeline', 'page', 4, pack 'L', 0 ],
	[ 'a page from elsewhere', 'page', 8, pack 'Q', 8192 * 4711 ],
	[ 'a page that begins with too much of a record', 'page', 16, pack 'L', 5000 ],
	[ 'a page in the middle of the WAL that is cut', 'page', 4096, "\0" x 4096 ],
);

# The same file in the WAL of each server.
sub damage
{
	my ($node, $place, @how) = @_;
	my ($file, $offset) = @$place;
	my $page = $how[0] eq 'page';
	$offset = $offset - $offset % 8192 + 8192 if $page;
	my $path = $node->data_dir . "/pg_wal/$file";
	# copies share segments as links
	my $bytes = slurp_file($path);
	substr($bytes, $offset + $how[-2], length $how[-1]) = $how[-1];
	unlink $path or die "$path: $!";
	append_to_file($path, $bytes);
	return;
}

# A server that has recovered up to the damage. PostgreSQL's prefetcher is off, or it might end earlier, for
# the timeline of a page that was read ahead.
sub damaged
{
	my ($conf, @how) = @_;
	my $node = copy_of($primary, 'crash', "${conf}recovery_prefetch = off\n");
	damage($node, @how);
	$node->start;
	$node->stop;
	return $node;
}

my $round = 0;
for my $damage (@damages)
{
	my ($what, @how) = @$damage;
	my $place = $places[ $round++ % @places ];
	my ($theirs) = damaged($STOCK, $place, @how);
	my ($mine, $read);
	for (1 .. 10)
	{
		$mine->clean_node if $mine;
		$mine = damaged($READING, $place, @how);
		last if ($read = read_by_helpers($mine)) > 100;
	}
	my @nodes = ($theirs, $mine);
	is(end_of_recovery($nodes[1]), end_of_recovery($nodes[0]),
		"$what: recovery ends where stock's does, with the same words");
	cmp_ok($read, '>', 100, 'after helpers have read what comes before');
	is(files_differ(@nodes), '', 'and files are the same');
	$_->clean_node for @nodes;
}

# ---- Random damage ----

my $seed = $ENV{SEED} // 1;
srand $seed;
for my $random (1 .. 4)
{
	my $place  = [ $places[ int rand @places ][0], int rand(1024 * 1024 - 8192) ];
	my $length = (1, 2, 64, 8192)[ int rand 4 ];
	my @how    = (0, rand() < 0.3 ? "\0" x $length : join '', map { chr int rand 256 } 1 .. $length);
	my @nodes  = map { damaged($_, $place, @how) } $STOCK, $READING;
	my $what   = "seed $seed, damage $random: $length bytes at $place->[1] of $place->[0]";
	is(end_of_recovery($nodes[1]), end_of_recovery($nodes[0]), "$what: the same end");
	is(files_differ(@nodes), '', 'and the same files');
	$_->clean_node for @nodes;
}

# ---- WAL that is mostly images ----

my $images = PostgreSQL::Test::Cluster->new('images');
$images->init(allows_streaming => 1);
$images->append_conf('postgresql.conf', "autovacuum = off\ncheckpoint_timeout = 1h\nmax_wal_size = 10GB\nlockstep.replay_workers = 0\n");
$images->start;
$images->safe_psql('postgres', q{
	CREATE TABLE a (id int, filler text);
	ALTER TABLE a ALTER filler SET STORAGE PLAIN;
	INSERT INTO a SELECT g, repeat('x', 5000) FROM generate_series(1, 6000) g;
	CHECKPOINT});
keep_data($images, 'images');
$images->safe_psql('postgres', 'DELETE FROM a WHERE id % 100 <> 0');
$images->stop('immediate');
keep_wal($images, 'images');
my $read = 0;
# on a busy machine a helper may come too late
for (1 .. 10)
{
	my $node = recovered($images, 'images', $WORKERS);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM a'), 60, 'rows are those before the crash');
	$node->stop;
	$read = read_by_helpers($node);
	$node->clean_node;
	last if $read > 0;
}
cmp_ok($read, '>', 0, 'by default helpers read WAL that is mostly images');

done_testing();
