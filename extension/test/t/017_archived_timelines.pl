# Tokens on a standby that has only an archive: timelines and their histories come from
# there, and the standby becomes a primary of a third timeline.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::Bin/../perl";
use LockstepSession;
use LockstepTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# All servers share the archive. A file gets its name there when it is complete.
my $old = new_primary(conf => 'archive_mode = on');
my $archive = $old->archive_dir;
set_and_reload($old, archive_command => qq{cp "%p" "$archive/%f.new" && mv "$archive/%f.new" "$archive/%f"});
my $first = new_standby($old, name => 'first');
my $reader = PostgreSQL::Test::Cluster->new('reader');
$old->backup('for_reader');
$reader->init_from_backup($old, 'for_reader', has_restoring => 1);
$reader->append_conf('postgresql.conf', q{
lockstep.wait_timeout = 0
wal_retrieve_retry_interval = 100ms
});
$reader->start;

my $on_old = LockstepSession->new($old);

sub on_reader { return LockstepSession->new($reader, user => 'app'); }

sub token { return $_[0]->value('SELECT lockstep_replay_token()'); }

# Commits the statement and gives its segment to the archive.
sub archived
{
	my ($session, $sql) = @_;
	$session->value($sql);
	my $token = token($session);
	$session->value('SELECT pg_switch_wal()');
	return $token;
}

sub has
{
	my ($token, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return succeeds(on_reader()->query("SET lockstep.wait_for_lsn = '$token'"), $name);
}

sub has_not
{
	my ($reply, $detail, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	refused($reply, '55000', qr/is not in the history of this server$/, $name);
	return like($reply->{detail} // '', $detail, 'and why');
}

sub starts_to_wait
{
	my ($token, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $session = on_reader();
	$session->send("SET lockstep.wait_for_lsn = '$token'");
	waits_for_lsn(LockstepSession->new($reader), $session, "the reader waits for $name");
	return $session;
}

# ---- The first timeline ----

my $kept = archived($on_old, 'CREATE TABLE written AS SELECT 1 AS i');
has($kept, 'what is in the archive');
is(on_reader()->value('SELECT count(*) FROM pg_stat_wal_receiver'), 0, 'nothing is streamed');

# ---- A failover that loses a write, which never reaches the archive ----

catch_up($on_old, LockstepSession->new($first));
set_and_reload($first, primary_conninfo => '');
wait_for_value(LockstepSession->new($first), 'SELECT count(*) FROM pg_stat_wal_receiver', 0,
	'the new primary receives no more');
$on_old->value('INSERT INTO written VALUES (2)');
my $lost        = token($on_old);
my $waits       = starts_to_wait($lost, 'the write that is lost');
my $next        = '2' . $lost =~ s/^1//r;
my $waits_there = starts_to_wait($next, 'the same position of a timeline to come');
$old->stop('immediate');
$first->promote;
my $on_first = LockstepSession->new($first);
# beyond the position of the lost write
$on_first->value('INSERT INTO written SELECT generate_series(-10000, -1)');
my $new = archived($on_first, 'INSERT INTO written VALUES (0)');
like($new, qr{^2/}, 'a token of the new primary');

my $from_first = qr/^This server's timeline 2 comes from timeline 1 only up to \S+\.$/;
has_not($waits->result, $from_first, 'the lost write, once the new timeline comes from the archive');
succeeds($waits_there->result, 'the position on the new timeline');
has($_, "$_: there") for $kept, $new;
has_not(on_reader()->query("SET lockstep.wait_for_lsn = '$lost'"), $from_first, 'the lost write');

# ---- The history only in the archive ----

my $history = $reader->data_dir . '/pg_wal/00000002.history';
unlink $history or die "$history: $!";
my $session = on_reader();
$session->value(q{SET lockstep.wait_timeout = '200ms'});
my $reply = $session->query("SET lockstep.wait_for_lsn = '$kept'");
refused($reply, '57014', qr/was not replayed within/, 'without the history nothing is known');
like($reply->{detail}, qr{History file "pg_wal/00000002.history" does not exist\.$}, 'which is said');
$reader->restart;
has($_, "$_: there after a restart, which gets the history from the archive") for $kept, $new;
has_not(on_reader()->query("SET lockstep.wait_for_lsn = '$lost'"), $from_first, 'the lost write');

# ---- A third timeline ----

my @waiters = map { starts_to_wait($_, $_) } '2/FFFFFFFF/0', '3/0/1000028', '4/0/1000028';
$reader->promote;
my $from_second = qr/^This server's timeline 3 comes from timeline 2 only up to \S+\.$/;
has_not($waiters[0]->result, $from_second, 'what timeline 2 never had');
succeeds($waiters[1]->result, 'its own timeline');
has_not($waiters[2]->result, qr/^This server is a primary of timeline 3\.$/,
	'a timeline that it will never come to');
has($_, "$_: there over two promotions") for $kept, $new;
has_not(on_reader()->query("SET lockstep.wait_for_lsn = '$lost'"),
	qr/^This server's timeline 3 comes from timeline 1 only up to \S+\.$/, 'the lost write');
is(on_reader()->value('SELECT count(*) FROM written WHERE i = 2'), 0, 'which is not there');
like(token(LockstepSession->new($reader)), qr{^3/}, 'its tokens');

done_testing();
