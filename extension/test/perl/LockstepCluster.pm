
=head1 NAME

LockstepCluster - servers' data directories in less time, and waits that notice a server's end

=head1 DESCRIPTION

Loading this changes what PostgreSQL::Test::Cluster does:

initdb runs once in each run of the tests for each set of options. Clusters begin as copies of what
it has made, so all have the same system identifier.

Folders are copied by cp, which leaves out what is only zeros, such as the rest of a WAL segment.

poll_query_until, wait_for_catchup and wait_for_log fail at once when the server, or the standby, has
ended: it will not come to what is waited for.

=cut

package LockstepCluster;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Fcntl ':flock';
use List::Util 'min';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Scalar::Util 'blessed';
use Test::More;
use Time::HiRes 'usleep';

our @EXPORT = qw(copy_folder link_segments init_from_own_backup);

# Newest WAL segments of a folder that a server on a copy of it may write to.
use constant WRITTEN_SEGMENTS => 3;

# Folders of the run, beside those of tests.
my $templates = "$ENV{TESTDIR}/templates";

# A file that goes away meanwhile, as of a server that runs, is left out.
sub copy_folder
{
	my ($from, $to) = @_;
	my $said = `LC_ALL=C cp -a --sparse=always '$from' '$to' 2>&1`;
	die "copying $from: $said" if $said =~ /^(?!.*No such file or directory$)./m || !-d $to;
	return 1;
}

# Takes the place of copypath in init_from_backup: the copy shares the WAL segments that its server only
# reads. It must not reuse them (wal_recycle = off); it cannot write to them.
sub link_segments
{
	my ($from, $to) = @_;
	my @segments = sort grep { m{/[0-9A-F]{24}$} } glob "$from/pg_wal/*";
	splice @segments, -min(WRITTEN_SEGMENTS, scalar @segments);
	my $aside = "$from.segments";
	mkdir $aside or die "$aside: $!";
	for my $segment (@segments)
	{
		chmod 0400, $segment;
		rename $segment, $segment =~ s{.*/}{$aside/}r or die "$segment: $!";
	}
	copy_folder($from, $to);
	for my $segment (@segments)
	{
		my $name = $segment =~ s{.*/}{}r;
		link "$aside/$name", "$to/pg_wal/$name" or die "$segment: $!";
		rename "$aside/$name", $segment or die "$segment: $!";
	}
	rmdir $aside or die "$aside: $!";
	return 1;
}

# Like init_from_backup. The backup becomes the data directory, so it is gone afterwards.
sub init_from_own_backup
{
	my ($node, $root, $backup, %params) = @_;
	no warnings 'redefine';
	local *PostgreSQL::Test::RecursiveCopy::copypath = sub { rename $_[0], $_[1] or die "$_[0]: $!" };
	$node->init_from_backup($root, $backup, %params);
	return;
}

# The folder that initdb makes with these options.
sub template
{
	my (@options) = @_;
	my $name = join '_', 'data', map { s/[^\w=]//gr } @options;
	mkdir $templates;
	open my $lock, '>', "$templates/$name.lock" or die "$templates: $!";
	flock $lock, LOCK_EX or die $!;
	return "$templates/$name" if -d "$templates/$name";
	PostgreSQL::Test::Utils::system_log('initdb', '-D', "$templates/$name.full", @options) == 0
	  or die 'initdb failed';
	copy_folder("$templates/$name.full", "$templates/$name.part");
	rename "$templates/$name.part", "$templates/$name" or die $!;
	return "$templates/$name";
}

# ---- Waits ----

# The standby that wait_for_catchup waits for.
our $awaited;

sub has_ended
{
	my ($node) = @_;
	open my $file, '<', $node->data_dir . '/postmaster.pid' or return 1;
	my $pid = <$file> // '';
	return $pid =~ /^(\d+)$/ && !kill 0, $1;
}

# Repeats the condition until it is true or a node has ended, after which it is asked once more.
sub poll
{
	my ($condition, @nodes) = @_;
	for my $attempt (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $ended = grep { has_ended($_) } @nodes;
		return 1 if $condition->();
		return 0 if $ended;
		usleep($attempt <= 5 ? 20_000 : 100_000);
	}
	return 0;
}

sub poll_query_until
{
	my ($node, $database, $query, $expected) = @_;
	my ($result, $out, $error);
	$expected //= 't';
	return 1 if poll(sub {
		# IPC::Run dies if psql, which cannot connect, ends before it has read the query.
		my @answer = eval { $node->psql($database, $query) };
		($result, $out, $error) = @answer ? @answer : (2, '', $@);
		return $out eq $expected && $error eq '';
	}, $node, $awaited // ());
	diag("waited in vain: $query\nshould be '$expected', is '$out'\n$error");
	return 0;
}

sub wait_for_log
{
	my ($node, $pattern, $offset) = @_;
	my $log;
	poll(sub { $log = slurp_file($node->logfile, $offset // 0); $log =~ /$pattern/ }, $node)
	  or die "waited in vain for $pattern in the log of " . $node->name;
	return ($offset // 0) + length $log;
}

my $wait_for_catchup = \&PostgreSQL::Test::Cluster::wait_for_catchup;
my $system_or_bail = \&PostgreSQL::Test::Utils::system_or_bail;
my $copypath = \&PostgreSQL::Test::RecursiveCopy::copypath;

{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::poll_query_until = \&poll_query_until;
	*PostgreSQL::Test::Cluster::wait_for_log = \&wait_for_log;
	*PostgreSQL::Test::Cluster::wait_for_catchup = sub {
		my ($node, $standby, @rest) = @_;
		local $awaited = $standby if blessed $standby;
		return $wait_for_catchup->($node, $standby, @rest);
	};
	*PostgreSQL::Test::Utils::system_or_bail = sub {
		my ($program, @arguments) = @_;
		my ($at) = grep { $arguments[$_] =~ /^(-D|--pgdata)$/ } 0 .. $#arguments;
		return $system_or_bail->(@_) if $program ne 'initdb' || !defined $at;
		my ($option, $folder) = splice @arguments, $at, 2;
		return copy_folder(template(@arguments), $folder);
	};
	*PostgreSQL::Test::RecursiveCopy::copypath = sub {
		my ($from, $to, %params) = @_;
		return %params || -e $to ? $copypath->(@_) : copy_folder($from, $to);
	};
}

1;
