/*
 * timeline_history.c - reads a timeline's history file.
 *
 * Runs in sessions. The server's own reader serves recovery: it takes a missing
 * file for a timeline without ancestors, asks the archive, and ends the process
 * on a file that it cannot use. For a session that asks about a token a missing
 * file means that nothing is known yet, and no file may end the session.
 *
 * What the server accepts is accepted here with the same meaning, and what it
 * refuses is of no use here: it reads pieces of up to MAXPGPATH - 1 bytes as
 * lines, skips blank ones and those that begin with #, and takes each other line
 * for an ancestor, decimal, the LSN at which the timeline left it, and words for
 * people. Ancestors ascend and are below the timeline.
 * (t/015_timeline_history.pl compares the two on odd files.)
 *
 * The file is read anew each time. A history file appears under its name when it
 * is complete, is never changed, and is seldom asked for.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/xlog_internal.h"
#include "storage/fd.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "wait/timeline_history.h"

/* Each failover adds one line. */
#define MAX_LINES 10000

typedef enum LineKind
{
	LINE_BLANK,
	LINE_FORK,
	LINE_BAD
} LineKind;

static LsAncestry history_unknown(char *problem, const char *path, const char *what);
static LsAncestry history_unknown_for_errno(char *problem, const char *path);
static const char *history_search_lines(FILE *file, TimeLineID tli, TimeLineID wanted, bool *found,
										XLogRecPtr *fork);
static LineKind history_parse_line(const char *line, TimeLineID *ancestor, XLogRecPtr *fork);

/*
 * Is ancestor, a lower timeline, one from which tli descends? Then *fork is
 * where the next timeline of its line left it. *problem is set if unknown.
 */
LsAncestry
ls_find_fork(TimeLineID tli, TimeLineID ancestor, XLogRecPtr *fork,
			 char problem[LS_HISTORY_PROBLEM_SIZE])
{
	char		path[MAXPGPATH];
	FILE	   *file;
	bool		found = false;
	const char *wrong;

	TLHistoryFilePath(path, tli);
	file = AllocateFile(path, "r");
	if (file == NULL)
		return errno == ENOENT ? history_unknown(problem, path, "does not exist") :
			history_unknown_for_errno(problem, path);

	pgstat_report_wait_start(WAIT_EVENT_TIMELINE_HISTORY_READ);
	wrong = history_search_lines(file, tli, ancestor, &found, fork);
	pgstat_report_wait_end();

	if (wrong == NULL && ferror(file))
	{
		LsAncestry	failed = history_unknown_for_errno(problem, path);

		FreeFile(file);
		return failed;
	}
	FreeFile(file);
	if (wrong != NULL)
		return history_unknown(problem, path, wrong);
	return found ? LS_ANCESTOR : LS_NOT_ANCESTOR;
}

static LsAncestry
history_unknown(char *problem, const char *path, const char *what)
{
	snprintf(problem, LS_HISTORY_PROBLEM_SIZE, "History file \"%s\" %s.", path, what);
	return LS_ANCESTRY_UNKNOWN;
}

static LsAncestry
history_unknown_for_errno(char *problem, const char *path)
{
	char		what[LS_HISTORY_PROBLEM_SIZE];

	snprintf(what, sizeof(what), "could not be read: %m");
	return history_unknown(problem, path, what);
}

/* NULL, or what is wrong with the file. All lines are checked, also after a find. */
static const char *
history_search_lines(FILE *file, TimeLineID tli, TimeLineID wanted, bool *found, XLogRecPtr *fork)
{
	char		line[MAXPGPATH];
	TimeLineID	last = 0;
	bool		first = true;

	for (int n = 0; fgets(line, sizeof(line), file) != NULL; n++)
	{
		TimeLineID	ancestor;
		XLogRecPtr	end;
		LineKind	kind = history_parse_line(line, &ancestor, &end);

		if (n >= MAX_LINES)
			return "has too many lines";
		if (kind == LINE_BAD)
			return "has a line that is not \"TIMELINE LSN\"";
		if (kind == LINE_BLANK)
			continue;
		if (!first && ancestor <= last)
			return "has timelines that do not ascend";
		first = false;
		last = ancestor;
		if (ancestor == wanted)
		{
			*found = true;
			*fork = end;
		}
	}
	if (!first && last >= tli)
		return "names an ancestor that is not below its timeline";
	return NULL;
}

static LineKind
history_parse_line(const char *line, TimeLineID *ancestor, XLogRecPtr *fork)
{
	uint32		high;
	uint32		low;

	while (isspace((unsigned char) *line))
		line++;
	if (*line == '\0' || *line == '#')
		return LINE_BLANK;
	if (sscanf(line, LS_HISTORY_LINE, ancestor, &high, &low) != 3)
		return LINE_BAD;
	*fork = ((uint64) high << 32) | low;
	return LINE_FORK;
}
