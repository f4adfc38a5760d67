/*
 * settings.c - the lockstep.* settings.
 *
 * Reloadable are all but lockstep.replay_workers and
 * lockstep.replay_queue_size, which size shared memory (start_limits.c), and lockstep.proc_root, which only
 * tests set: it shows the extension a kernel that refuses. docs/reference.md says when to
 * change which setting.
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "replay/broken_rule.h"
#include "state/settings.h"
#include "wait/token.h"

bool		ls_enabled = true;
int			ls_replay_priority = LS_PRIORITY_ON;
bool		ls_priority_irreversible = false;
int			ls_read_throttle = LS_THROTTLE_ON;
int			ls_read_throttle_lag = 100;
int			ls_read_throttle_give_up = 5000;
int			ls_read_throttle_min = 1;
int			ls_read_throttle_max = 0;
int			ls_read_throttle_turn = 20;
int			ls_read_throttle_timeout = 0;
int			ls_read_throttle_long_query = 1000;
bool		ls_report_token = false;
int			ls_wait_timeout = 10000;
int			ls_replay_look_ahead = 8;
int			ls_replay_workers = LS_WORKERS_AUTO;
int			ls_replay_queue_size = 4096;
int			ls_replay_hot_standby = LS_AUTO;
int			ls_replay_min_backlog = 1024;
int			ls_replay_read_helpers = LS_AUTO;
int			ls_wal_segments_ahead = 4;
char	   *ls_wait_for_lsn = NULL;
char	   *ls_replay_token = NULL;
char	   *ls_proc_root = NULL;
static char *settings_version = NULL;

static const struct config_enum_entry settings_throttle_modes[] = {
	{"off", LS_THROTTLE_OFF, false},
	{"log", LS_THROTTLE_LOG, false},
	{"on", LS_THROTTLE_ON, false},
	{NULL, 0, false}
};

/* What a switch accepts, and "always". */
static const struct config_enum_entry settings_priorities[] = {
	{"off", LS_PRIORITY_OFF, false},
	{"on", LS_PRIORITY_ON, false},
	{"always", LS_PRIORITY_ALWAYS, false},
	{"true", LS_PRIORITY_ON, true},
	{"false", LS_PRIORITY_OFF, true},
	{"yes", LS_PRIORITY_ON, true},
	{"no", LS_PRIORITY_OFF, true},
	{"1", LS_PRIORITY_ON, true},
	{"0", LS_PRIORITY_OFF, true},
	{NULL, 0, false}
};

static const struct config_enum_entry settings_workers[] = {
	{"auto", LS_WORKERS_AUTO, false},
	{"0", 0, false},
	{"1", 1, false},
	{"2", 2, false},
	{"3", 3, false},
	{"4", 4, false},
	{"5", 5, false},
	{"6", 6, false},
	{"7", 7, false},
	{"8", 8, false},
	{"9", 9, false},
	{"10", 10, false},
	{"11", 11, false},
	{"12", 12, false},
	{"13", 13, false},
	{"14", 14, false},
	{"15", 15, false},
	{"16", 16, false},
	{NULL, 0, false}
};

StaticAssertDecl(lengthof(settings_workers) == LS_MAX_REPLAY_WORKERS + 3, "a number of workers has no name");

/* What a switch accepts, and "auto". */
static const struct config_enum_entry settings_auto_switch[] = {
	{"auto", LS_AUTO, false},
	{"on", LS_ON, false},
	{"off", LS_OFF, false},
	{"true", LS_ON, true},
	{"false", LS_OFF, true},
	{"yes", LS_ON, true},
	{"no", LS_OFF, true},
	{"1", LS_ON, true},
	{"0", LS_OFF, true},
	{NULL, 0, false}
};

static void settings_define_throttle(void);
static void settings_define_replay(void);
static void settings_define_wait(void);
static bool settings_check_wait_for_lsn(char **newval, void **extra, GucSource source);

void
ls_define_settings(void)
{
	DefineCustomBoolVariable("lockstep.enabled",
							 "Switches Lockstep on; with off the server behaves like stock PostgreSQL.",
							 NULL,
							 &ls_enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("lockstep.replay_priority",
							 "Gives replay the CPU before the read queries of a standby.",
							 "\"on\" runs them at a lower priority only while replay lacks the CPU.",
							 &ls_replay_priority, LS_PRIORITY_ON, settings_priorities,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("lockstep.priority_irreversible",
							 "Lowers priorities even where the kernel will not raise them again.",
							 "After promotion such sessions stay slow until they reconnect.",
							 &ls_priority_irreversible, false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	settings_define_throttle();
	settings_define_replay();
	settings_define_wait();
	DefineCustomStringVariable("lockstep.version",
							   "Version of the library that is loaded.",
							   NULL,
							   &settings_version, LS_VERSION,
							   PGC_INTERNAL,
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("lockstep.proc_root",
							   "Where procfs is mounted (for tests).",
							   NULL,
							   &ls_proc_root, "/proc",
							   PGC_POSTMASTER,
							   GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL | GUC_SUPERUSER_ONLY,
							   NULL, NULL, NULL);

#ifdef LS_BREAKABLE
	ls_define_broken_rule();
#endif
	MarkGUCPrefixReserved("lockstep");
}

static void
settings_define_throttle(void)
{
	DefineCustomEnumVariable("lockstep.read_throttle",
							 "Bounds how many read queries of a standby execute at once.",
							 "\"log\" only counts and logs what \"on\" would hold back.",
							 &ls_read_throttle, LS_THROTTLE_ON, settings_throttle_modes,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_lag",
							"Replay lag above which fewer read queries may execute.",
							"0 ignores lag; only the bound by the number of cores remains.",
							&ls_read_throttle_lag, 100, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_give_up",
							"Time after which the throttle ignores lag that fewer read queries do not cure.",
							"0 never gives up.",
							&ls_read_throttle_give_up, 5000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_min",
							"Number of read queries that may always execute.",
							NULL,
							&ls_read_throttle_min, 1, 1, 262143,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_max",
							"Number of read queries that may execute while nothing lags.",
							"0 chooses it from the cores that the server may use.",
							&ls_read_throttle_max, 0, 0, 262143,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_long_query",
							"Time after which an executing read query makes room for another.",
							"While replay lags, it makes room only for lockstep.read_throttle_min others. 0 never makes room.",
							&ls_read_throttle_long_query, 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_turn",
							"Longest time that a session keeps its place while others wait.",
							"0 lets another session in after each query.",
							&ls_read_throttle_turn, 20, 0, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.read_throttle_timeout",
							"Longest time that a read query is held back before it fails.",
							"0 waits without limit.",
							&ls_read_throttle_timeout, 0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
}

static void
settings_define_replay(void)
{
	DefineCustomIntVariable("lockstep.replay_look_ahead",
							"Number of records that are decoded before replay comes to them.",
							"Replay looks up their blocks early. 0 leaves reading ahead to recovery_prefetch.",
							&ls_replay_look_ahead, 8, 0, LS_MAX_LOOK_AHEAD,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("lockstep.replay_workers",
							 "Number of processes that help to replay WAL.",
							 "They help until recovery is consistent, and after that with lockstep.replay_hot_standby. "
							 "\"auto\" chooses the number from the cores that the server may use. "
							 "0 replays in one process, as PostgreSQL does.",
							 &ls_replay_workers, LS_WORKERS_AUTO, settings_workers,
							 PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("lockstep.replay_hot_standby",
							 "Lets lockstep.replay_workers also help while sessions read.",
							 "\"auto\" does so on the major versions on which that is tested enough.",
							 &ls_replay_hot_standby, LS_AUTO, settings_auto_switch,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.replay_min_backlog",
							"WAL that must wait for replay before lockstep.replay_hot_standby acts.",
							NULL,
							&ls_replay_min_backlog, 1024, 0, 1024 * 1024,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomEnumVariable("lockstep.replay_read_helpers",
							 "Lets lockstep.replay_workers also read WAL for the startup process.",
							 "A helper checks and decodes the next records of the WAL segment that is replayed. "
							 "\"auto\" lets it while images of pages are most of the WAL.",
							 &ls_replay_read_helpers, LS_AUTO, settings_auto_switch,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.replay_queue_size",
							"Shared memory for records that lockstep.replay_workers work on.",
							"At most a quarter of the memory that the server may use; none without replay helpers.",
							&ls_replay_queue_size, 4096, LS_MIN_QUEUE_KB, 1024 * 1024,
							PGC_POSTMASTER, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("lockstep.wal_segments_ahead",
							"Number of WAL segments that a standby creates before they are received.",
							"0 leaves it to the walreceiver, which receives nothing meanwhile.",
							&ls_wal_segments_ahead, 4, 0, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
}

static void
settings_define_wait(void)
{
	DefineCustomIntVariable("lockstep.wait_timeout",
							"Longest time that SET lockstep.wait_for_lsn waits.",
							"0 waits without limit.",
							&ls_wait_timeout, 10000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("lockstep.wait_for_lsn",
							   "SET returns once the standby has replayed what this token names.",
							   NULL,
							   &ls_wait_for_lsn, "",
							   PGC_USERSET, GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   settings_check_wait_for_lsn, NULL, NULL);
	DefineCustomBoolVariable("lockstep.report_token",
							 "Sends the token of each transaction that wrote to its client.",
							 "The server reports it as the value of lockstep.replay_token.",
							 &ls_report_token, false,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("lockstep.replay_token",
							   "Token of the last commit, while lockstep.report_token is on.",
							   NULL,
							   &ls_replay_token, "",
							   PGC_INTERNAL,
							   GUC_REPORT | GUC_NO_RESET_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, NULL);
}

/*
 * Checks the syntax; the waiting is done by SET, in the utility hook (wait_lsn.c). A value that
 * comes another way would be assigned without that, and nobody would wait. So it is refused: what
 * ALTER ROLE, ALTER DATABASE or a function would keep, or has kept while the library was not
 * loaded; what is in a configuration file, on the command line or among a connection's options.
 * ALTER SYSTEM is refused by GUC_DISALLOW_IN_FILE. Only set_config() cannot be told from SET here.
 * When a configuration file has the setting, every process that reads the file calls this, the
 * startup process included: extension/src/README.md has the rule.
 */
static bool
settings_check_wait_for_lsn(char **newval, void **extra, GucSource source)
{
	LsToken		token;

	if (*newval == NULL || **newval == '\0')
		return true;
	if (source < PGC_S_INTERACTIVE || source == PGC_S_TEST)
	{
		GUC_check_errmsg("lockstep.wait_for_lsn can only be set by SET in a session");
		GUC_check_errdetail("Nobody would wait for a value that is kept for a role, a database or a function, "
							"or that comes from a configuration file or from a connection's options.");
		return false;
	}
	if (ls_parse_token(*newval, &token))
		return true;

	GUC_check_errdetail("A token is a timeline and the end of a record in the WAL, like 1/0/16B3748; "
						"a WAL position alone is accepted too, unless it looks like the beginning of a token.");
	GUC_check_errhint("Pass what lockstep_replay_token() returned on the primary.");
	return false;
}
