# A replay helper keeps no handle of a file that it has closed: its memory does not grow with the number of
# relations that it has ever come to.

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

# Tables, with so many indexes each, are filled in groups. Records of one group fit into the queue, so that a
# helper executes all of them while replay stands still. 3,700 handles take 470 kB and more.
my ($GROUPS, $IN_A_GROUP, $INDEXES) = (14, 7, 40);

# Memory that a helper may use in addition after all groups, in kB.
my $ALLOWED = 150;

my $primary = hot_primary('primary', "full_page_writes = off\n");
for my $group (1 .. $GROUPS)
{
	$primary->safe_psql('postgres', qq{
		DO \$\$ BEGIN FOR t IN 1 .. $IN_A_GROUP LOOP
			EXECUTE format('CREATE TABLE t${group}_%s (i int)', t);
			EXECUTE format('INSERT INTO t${group}_%s VALUES (0), (0)', t);
			EXECUTE format('DELETE FROM t${group}_%s WHERE ctid = ''(0,1)''', t);
			FOR n IN 1 .. $INDEXES LOOP
				EXECUTE format('CREATE INDEX ON t${group}_%s (i)', t);
			END LOOP;
		END LOOP; END \$\$});
}
# without a free space map, records of insertions wait for their turn
$primary->safe_psql('postgres', 'VACUUM');
my $standby = new_standby($primary, name => 'standby', conf => "${HOT}lockstep.replay_workers = 1\n");

# Has a helper execute records of the group's tables. Two tables whose maps have the same slot in the startup
# process's table of map pages count as one, so that the later one waits for its turn: which do depends on their OIDs,
# and so on the major. So it is enough to come to one of the last two.
sub fill_group
{
	my ($group) = @_;
	my $nearly_all;
	my ($old, $admin) = stands_still($primary, $standby, after => sub {
		for my $table (1 .. $IN_A_GROUP)
		{
			$nearly_all = $primary->lsn('insert') if $table < $IN_A_GROUP;
			$primary->safe_psql('postgres', "INSERT INTO t${group}_$table VALUES (1)");
		}
	});
	wait_until($admin, "SELECT lsn >= '$nearly_all' FROM lockstep_stat_replay_workers WHERE pid IS NOT NULL",
		'it comes to the last tables of the group');
	$_->close for $old, $admin;
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	return;
}

# The helper's process, and its memory in kB that is not shared.
sub helper
{
	my $pid = worker_pid($standby, 'lockstep replay helper') // return (0, 0);
	my ($kB) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
	return ($pid, $kB);
}

fill_group(1);
my ($pid, $few) = helper();
note "$few kB after one group";
fill_group($_) for 2 .. $GROUPS;
my ($same, $many) = helper();
note "$many kB after all groups";
is($same, $pid, 'it is one process all the time');
cmp_ok($many - $few, '<', $ALLOWED, 'which keeps nothing of files that it has closed');
same_rows($primary, $standby, 'no row is lost');

$standby->stop;
$primary->stop;

done_testing();
