/*
 * report_token.c - lockstep.report_token: a client learns the token of what it
 * wrote without asking.
 *
 * Runs in client backends of a server that takes writes, at each commit. It sets
 * lockstep.replay_token, which is a reported setting: before the server says that
 * it is ready for the next query it sends reported settings that have changed. So
 * a client has the token of the last commit when it has the whole answer; of
 * several commits in one answer (procedures, strings of statements) it gets the
 * last one's token.
 *
 * XactLastCommitEnd moves with each transaction of this process that wrote WAL:
 * also in parallel workers, with COMMIT PREPARED, and without a transaction id
 * (pruning by a query). It does not move with a transaction that is rolled back or
 * only prepared, and it is no less a record's end if the commit is asynchronous.
 *
 * The transaction is committed already, so an error here would be a PANIC. Nothing
 * here raises one: a level below ERROR is given for what may fail, and the setting
 * of an internal source saves no old value. A rollback leaves it as it is.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "state/settings.h"
#include "wait/report_token.h"
#include "wait/token.h"

/* The commit that the setting names, 0: none. */
static XLogRecPtr report_token_reported = InvalidXLogRecPtr;

static void report_token_at_end_of_transaction(XactEvent event, void *arg);
static void report_token_set(XLogRecPtr lsn, const char *text);

/* In the postmaster: its children inherit the callback. */
void
ls_report_token_register_callback(void)
{
	RegisterXactCallback(report_token_at_end_of_transaction, NULL);
}

static void
report_token_at_end_of_transaction(XactEvent event, void *arg)
{
	LsToken		token = {.lsn = ls_report_token ? XactLastCommitEnd : InvalidXLogRecPtr};
	char		text[LS_TOKEN_TEXT_SIZE] = "";

	if (event != XACT_EVENT_COMMIT || token.lsn == report_token_reported)
		return;
	/* background workers have no client */
	if (whereToSendOutput != DestRemote)
		return;
	/* once switched off, the client must not take an old token for a current one */
	if (token.lsn != InvalidXLogRecPtr)
	{
		token.tli = GetWALInsertionTimeLine();
		ls_print_token(&token, text);
	}
	report_token_set(token.lsn, text);
}

/* A value that could not be set is tried again at the next commit. */
static void
report_token_set(XLogRecPtr lsn, const char *text)
{
	if (set_config_option("lockstep.replay_token", text, PGC_INTERNAL, PGC_S_OVERRIDE,
						  GUC_ACTION_SET, true, LOG, false) > 0)
		report_token_reported = lsn;
}
