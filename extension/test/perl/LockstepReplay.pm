
=head1 NAME

LockstepReplay - what the TAP tests of parallel replay share

=head1 DESCRIPTION

Copies of a server's data that recover with and without helpers, and their comparison, file by
file.

=cut

package LockstepReplay;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Compare;
use File::Copy;
use File::Find;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  $WORKERS
  keep_data keep_wal crashed copy_of recovered pipeline
  files_of differing differing_files overwrite
);

our $WORKERS = "lockstep.replay_workers = 2\n";

my $number = 0;

# ---- Copies ----

# The data as they are now, which should be when no session writes.
sub keep_data
{
	my ($node, $name) = @_;
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $node->backup_dir . "/$name",
		filterfn => sub { $_[0] ne 'postmaster.pid' && $_[0] ne 'postmaster.opts' && $_[0] ne 'log' });
	return;
}

# Data that were kept earlier get all WAL that the server has by now.
sub keep_wal
{
	my ($node, $name) = @_;
	my $wal = $node->backup_dir . "/$name/pg_wal";
	unlink glob "$wal/[0-9A-F]*";
	for my $file (glob $node->data_dir . '/pg_wal/[0-9A-F]*')
	{
		copy($file, $wal) or die "$file: $!";
	}
	return;
}

# The data as a kill leaves them.
sub crashed
{
	my ($node, $name) = @_;
	$node->stop('immediate') if defined $node->{_pid};
	keep_data($node, $name);
	return;
}

# A server on a copy of these data, not yet started.
sub copy_of
{
	my ($node, $name, $conf) = @_;
	my $copy = PostgreSQL::Test::Cluster->new('copy' . ++$number);
	$copy->init_from_backup($node, $name);
	$copy->append_conf('postgresql.conf', "autovacuum = off\n$conf");
	return $copy;
}

sub recovered
{
	my ($node, $name, $conf) = @_;
	my $copy = copy_of($node, $name, $conf);
	$copy->start;
	return $copy;
}

# Columns of the view, of a server that takes sessions.
sub pipeline
{
	my ($node, $column, $database) = @_;
	return $node->safe_psql($database // 'postgres', "SELECT $column FROM lockstep_stat_replay_pipeline");
}

# ---- Comparison of stopped servers ----

# Main forks of the tables, indexes and sequences of a server that runs.
sub files_of
{
	my ($node) = @_;
	return split /\n/, $node->safe_psql('postgres', q{
		SELECT pg_relation_filepath(oid) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')});
}

# Those of the files that differ between two servers.
sub differing
{
	my ($one, $other, @files) = @_;
	return join ' ', grep { compare($one->data_dir . "/$_", $other->data_dir . "/$_") != 0 } @files;
}

# All forks of all relations, but of the databases in which sessions have set hint bits.
sub forks
{
	my ($node, @but) = @_;
	my %but = map { $_ => 1 } @but;
	my @forks;
	find({ no_chdir => 1, wanted => sub {
		my $file = substr $File::Find::name, 1 + length $node->data_dir;
		my ($database) = $file =~ m{(?:^base|/PG_[^/]*)/(\d+)/};
		push @forks, $file
		  if defined $database && !$but{$database} && $file =~ m{/\d+(?:_\w+)?(?:\.\d+)?$};
	} }, map { $node->data_dir . "/$_" } qw(base pg_tblspc));
	return @forks;
}

# Names of all forks that differ, or that only one of the servers has.
sub differing_files
{
	my ($one, $other, @but) = @_;
	my %files = map { $_ => 1 } forks($one, @but), forks($other, @but);
	return join ' ', grep { !same_file($_, $one, $other) } sort keys %files;
}

sub same_file
{
	my ($file, @nodes) = @_;
	my ($one, $other) = map { $_->data_dir . "/$file" } @nodes;
	return -e $one && -e $other && compare($one, $other) == 0;
}

# ---- Damage ----

# Writes this over a file.
sub overwrite
{
	my ($path, $offset, $bytes) = @_;
	open my $file, '+<', $path or die "$path: $!";
	binmode $file;
	seek $file, $offset, 0 or die $!;
	print $file $bytes;
	close $file or die $!;
	return;
}

1;
