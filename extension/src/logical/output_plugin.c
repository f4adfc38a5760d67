/*
 * output_plugin.c - logical decoding output plugin "lockstep": what pgoutput
 * writes, in batches.
 *
 * A walsender spends more than half of its time in one socket write for each
 * message. This plugin calls pgoutput's own callbacks and gathers what they
 * write, so that many messages share one write. Without the option "batch" it
 * is pgoutput, message for message, and any subscriber can use the slot.
 *
 * Process: the walsender, or the session that calls an SQL function. No
 * preloading is needed and no shared memory is used. All state belongs to one
 * decoding context and goes with it, also on error; a server that crashes or
 * a standby that is promoted loses nothing, because nothing is kept.
 *
 * Option batch:
 *   off     each message by itself, as pgoutput writes it (default)
 *   commit  a batch ends at every boundary: commit, end of a streamed block,
 *           abort, prepare and what becomes of it, message outside of a
 *           transaction
 *   hold    a batch may go on past boundaries while there is WAL to decode. A
 *           walsender's keepalives then cover commits that were not sent yet,
 *           so the first commit that is held is announced with a marker, and
 *           the receiver must not confirm any keepalive's position between
 *           that marker and the next batch. SQL functions, which have no
 *           keepalives and end without a warning, treat "hold" as "commit".
 *
 *
 * With hold the walsender also takes fewer, larger turns under load. Whoever
 * flushes WAL wakes it, so it would decode a few transactions at a time, each
 * time at the cost of two context switches, a write and a keepalive. So where a
 * turn ends (no WAL is left) less than TURN_US after it began, it rests until
 * then. A transaction that comes after a pause is sent at once. While commits
 * may wait for this walsender (sync_standby_priority) it never rests.
 *
 * Messages sent, each in one CopyData or one row:
 *   'O'                               marker: a commit is held from here on
 *   'B' int32 n, then n entries       batch; ends what a marker began
 *      entry: int64 lsn, int64 time, int32 length, the message
 * Numbers are big-endian. lsn is what the message's own header would say (0
 * for all but the last message of a change, as pgoutput has it). time is when
 * the message was made, in microseconds since 2000-01-01; up to 16 messages in
 * a row have the same. The outer header has the last entry's lsn.
 *
 * Limits: a batch ends at BATCH_BYTES, and at half of wal_sender_timeout. A
 * message larger than BATCH_BYTES is sent in a batch of its own; its largest
 * size is 25 bytes below the 1 GB less one byte that PostgreSQL allows.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "port/pg_bswap.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"

/* A batch ends once it is this large, in bytes. */
#define BATCH_BYTES (64 * 1024)

/* What stands before a message, in network byte order. */
typedef struct EntryHeader
{
	uint64		lsn;
	uint64		time;
	uint32		length;
} EntryHeader;

/* Bytes of a header as sent; the structure may be longer. */
#define ENTRY_HEADER (offsetof(EntryHeader, length) + sizeof(uint32))

/* Number of entries of a batch for which the clock is read once. */
#define ENTRIES_A_TIME 16

/* Kinds of messages. */
#define BATCH 'B'
#define MARKER 'O'

/* Longest time that a commit is held while decoding goes on, in ms. */
#define HOLD_MS 10

/* Shortest time from the beginning of one turn to that of the next, in us. */
#define TURN_US 4000

typedef enum BatchMode
{
	BATCH_OFF,
	BATCH_COMMIT,
	BATCH_HOLD
} BatchMode;

/* The batch of one decoding context; a process has at most one. */
typedef struct Batch
{
	BatchMode	mode;
	LogicalDecodingContext *ctx;

	/* what the context had before we replaced it */
	LogicalOutputPluginWriterPrepareWrite prepare_write;
	LogicalOutputPluginWriterWrite write;
	StringInfo	out;
	XLogPageReadCB page_read;

	/* one message, as pgoutput writes it; ctx->out points here */
	StringInfo	message;
	/* finished entries */
	StringInfo	entries;
	int			count;
	/* positions and transaction of the last entry */
	XLogRecPtr	lsn;
	XLogRecPtr	location;
	TransactionId xid;
	/* time of the first entry, and time that the clock said last */
	TimestampTz since;
	TimestampTz now;
	/* a marker was sent: a commit is held */
	bool		open;
	/* when there was WAL again after none was left */
	TimestampTz turn;

	MemoryContextCallback reset;
} Batch;

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

static OutputPluginCallbacks plugin_pgoutput;
static Batch *plugin_batch = NULL;

static void plugin_startup(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init);
static BatchMode plugin_take_mode(LogicalDecodingContext *ctx);
static void plugin_wrap_writer(LogicalDecodingContext *ctx, BatchMode mode);
static void plugin_forget_batch(void *arg);
static void plugin_prepare_entry(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
								 bool last_write);
static void plugin_write_entry(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
							   bool last_write);
static void plugin_flush(void);
static void plugin_flush_with(const StringInfo tail);
static void plugin_send(char kind, const StringInfo tail, bool with_lsn);
static int plugin_read_page(XLogReaderState *reader, XLogRecPtr page, int needed, XLogRecPtr record,
							char *buffer);
static bool plugin_batch_is_older(int ms);
static void plugin_rest(void);
static void plugin_shutdown(LogicalDecodingContext *ctx);
static void plugin_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn);
static void plugin_boundary(void);
static void plugin_open_batch(void);
static void plugin_message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn,
						   bool transactional, const char *prefix, Size size,
						   const char *content);
static void plugin_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn);
static void plugin_commit_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
								   XLogRecPtr lsn);
static void plugin_rollback_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
									 XLogRecPtr prepare_end_lsn, TimestampTz prepare_time);
static void plugin_stream_stop(LogicalDecodingContext *ctx, ReorderBufferTXN *txn);
static void plugin_stream_abort(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn);
static void plugin_stream_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
								  XLogRecPtr lsn);
static void plugin_stream_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
								 XLogRecPtr lsn);

void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	LogicalOutputPluginInit init = (LogicalOutputPluginInit)
		load_external_function("pgoutput", "_PG_output_plugin_init", true, NULL);

	memset(&plugin_pgoutput, 0, sizeof(plugin_pgoutput));
	init(&plugin_pgoutput);

	*callbacks = plugin_pgoutput;
	callbacks->startup_cb = plugin_startup;
	callbacks->shutdown_cb = plugin_shutdown;
	callbacks->commit_cb = plugin_commit;
	callbacks->message_cb = plugin_message;
	callbacks->prepare_cb = plugin_prepare;
	callbacks->commit_prepared_cb = plugin_commit_prepared;
	callbacks->rollback_prepared_cb = plugin_rollback_prepared;
	callbacks->stream_stop_cb = plugin_stream_stop;
	callbacks->stream_abort_cb = plugin_stream_abort;
	callbacks->stream_prepare_cb = plugin_stream_prepare;
	callbacks->stream_commit_cb = plugin_stream_commit;
}

static void
plugin_startup(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init)
{
	BatchMode	mode = plugin_take_mode(ctx);

	/*
	 * Only streaming has progress to tell, and waits for WAL in the page
	 * reader. An SQL function moves the slot at its end whatever was held,
	 * also when a walsender runs it (replication=database).
	 */
	if (mode == BATCH_HOLD && ctx->update_progress == NULL)
		mode = BATCH_COMMIT;

	plugin_pgoutput.startup_cb(ctx, options, is_init);

	/* while a slot is made nothing is written, and there may be no writer */
	plugin_batch = NULL;
	if (!is_init && mode != BATCH_OFF && ctx->write != NULL)
		plugin_wrap_writer(ctx, mode);
}

/* Takes our option out of the list, since pgoutput refuses what it does not know. */
static BatchMode
plugin_take_mode(LogicalDecodingContext *ctx)
{
	BatchMode	mode = BATCH_OFF;
	ListCell   *cell;

	foreach(cell, ctx->output_plugin_options)
	{
		DefElem    *option = (DefElem *) lfirst(cell);
		char	   *value;

		if (strcmp(option->defname, "batch") != 0)
			continue;
		value = option->arg ? defGetString(option) : "";
		if (strcmp(value, "off") == 0)
			mode = BATCH_OFF;
		else if (strcmp(value, "commit") == 0)
			mode = BATCH_COMMIT;
		else if (strcmp(value, "hold") == 0)
			mode = BATCH_HOLD;
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for option \"batch\" of output plugin lockstep: \"%s\"",
							value),
					 errhint("Available values: off, commit, hold.")));
		ctx->output_plugin_options =
			foreach_delete_current(ctx->output_plugin_options, cell);
	}
	return mode;
}

static void
plugin_wrap_writer(LogicalDecodingContext *ctx, BatchMode mode)
{
	MemoryContext old = MemoryContextSwitchTo(ctx->context);

	plugin_batch = palloc0(sizeof(Batch));
	plugin_batch->mode = mode;
	plugin_batch->ctx = ctx;
	plugin_batch->prepare_write = ctx->prepare_write;
	plugin_batch->write = ctx->write;
	plugin_batch->out = ctx->out;
	plugin_batch->message = makeStringInfo();
	plugin_batch->entries = makeStringInfo();
	enlargeStringInfo(plugin_batch->entries, BATCH_BYTES + ENTRY_HEADER);
	plugin_batch->reset.func = plugin_forget_batch;
	plugin_batch->reset.arg = plugin_batch;
	MemoryContextRegisterResetCallback(ctx->context, &plugin_batch->reset);

	ctx->prepare_write = plugin_prepare_entry;
	ctx->write = plugin_write_entry;
	ctx->out = plugin_batch->message;
	if (mode == BATCH_HOLD)
	{
		plugin_batch->page_read = ctx->reader->routine.page_read;
		ctx->reader->routine.page_read = plugin_read_page;
	}
	MemoryContextSwitchTo(old);
}

static void
plugin_forget_batch(void *arg)
{
	if (plugin_batch == arg)
		plugin_batch = NULL;
}

static void
plugin_prepare_entry(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
					 bool last_write)
{
	resetStringInfo(plugin_batch->message);
}

static void
plugin_write_entry(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
				   bool last_write)
{
	StringInfo	message = plugin_batch->message;
	bool		large = message->len > BATCH_BYTES;
	EntryHeader header;

	/* a large message goes alone, and is not copied into the batch first */
	if (large)
		plugin_flush();

	/* messages that are made one right after the other may share a time */
	if (plugin_batch->count % ENTRIES_A_TIME == 0)
		plugin_batch->now = GetCurrentTimestamp();
	if (plugin_batch->count == 0)
		plugin_batch->since = plugin_batch->now;
	plugin_batch->lsn = last_write ? lsn : InvalidXLogRecPtr;
	plugin_batch->location = lsn;
	plugin_batch->xid = xid;
	plugin_batch->count++;
	header.lsn = pg_hton64(plugin_batch->lsn);
	header.time = pg_hton64(plugin_batch->now);
	header.length = pg_hton32(message->len);
	appendBinaryStringInfo(plugin_batch->entries, (char *) &header, ENTRY_HEADER);
	if (large)
		plugin_flush_with(message);
	else
		appendBinaryStringInfo(plugin_batch->entries, message->data, message->len);

	/* as often as the walsender itself: at every message */
	CHECK_FOR_INTERRUPTS();

	if (plugin_batch->entries->len >= BATCH_BYTES ||
		(wal_sender_timeout > 0 &&
		 TimestampDifferenceExceeds(plugin_batch->since, plugin_batch->now,
									wal_sender_timeout / 2)))
		plugin_flush();
}

static void
plugin_flush(void)
{
	plugin_flush_with(NULL);
}

/* Sends what was gathered, if anything; tail: the last entry's message. */
static void
plugin_flush_with(const StringInfo tail)
{
	if (plugin_batch->count == 0)
		return;
	plugin_send(BATCH, tail, plugin_batch->lsn != InvalidXLogRecPtr);
	plugin_batch->count = 0;
	plugin_batch->open = false;
	resetStringInfo(plugin_batch->entries);
}

/*
 * Sends one message through the context's own writer: kind, and for a batch
 * its entries, the last of which may have its message in tail.
 */
static void
plugin_send(char kind, const StringInfo tail, bool with_lsn)
{
	LogicalDecodingContext *ctx = plugin_batch->ctx;

	ctx->out = plugin_batch->out;
	plugin_batch->prepare_write(ctx, plugin_batch->location, plugin_batch->xid, with_lsn);
	pq_sendbyte(ctx->out, kind);
	if (kind == BATCH)
	{
		pq_sendint32(ctx->out, plugin_batch->count);
		appendBinaryStringInfo(ctx->out, plugin_batch->entries->data, plugin_batch->entries->len);
	}
	if (tail)
		appendBinaryStringInfo(ctx->out, tail->data, tail->len);
	plugin_batch->write(ctx, plugin_batch->location, plugin_batch->xid, with_lsn);
	ctx->out = plugin_batch->message;
}

/*
 * Reading a page may wait for WAL: nothing may be held then. It does not wait
 * for what is flushed already (on a standby: replayed).
 */
static int
plugin_read_page(XLogReaderState *reader, XLogRecPtr page, int needed,
				 XLogRecPtr record, char *buffer)
{
	XLogRecPtr	available = RecoveryInProgress() ?
		GetXLogReplayRecPtr(NULL) : GetFlushRecPtr(NULL);
	bool		turn_ends = page + needed > available;
	int			length;

	if (plugin_batch->count > 0 &&
		(turn_ends || !ls_may_hold_commits() || plugin_batch_is_older(HOLD_MS)))
		plugin_flush();
	if (!turn_ends)
		return plugin_batch->page_read(reader, page, needed, record, buffer);
	plugin_rest();
	length = plugin_batch->page_read(reader, page, needed, record, buffer);
	plugin_batch->turn = GetCurrentTimestamp();
	return length;
}

static bool
plugin_batch_is_older(int ms)
{
	return plugin_batch->count > 0 &&
		TimestampDifferenceExceeds(plugin_batch->since, GetCurrentTimestamp(), ms);
}

/*
 * Lets WAL gather if the turn that ends here began just now. Whoever flushes WAL
 * does not wake a process that sleeps like this.
 */
static void
plugin_rest(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = plugin_batch->turn + TURN_US;

	/* commits that wait for this stream must not wait longer */
	if (MyWalSnd == NULL || MyWalSnd->sync_standby_priority > 0)
		return;
	/* a clock that was set back must not make it longer */
	if (now < plugin_batch->turn || now >= until)
		return;
	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	pg_usleep(until - now);
	pgstat_report_wait_end();
	CHECK_FOR_INTERRUPTS();
}

static void
plugin_shutdown(LogicalDecodingContext *ctx)
{
	if (plugin_pgoutput.shutdown_cb)
		plugin_pgoutput.shutdown_cb(ctx);
	plugin_batch = NULL;
}

static void
plugin_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.commit_cb(ctx, txn, lsn);
	plugin_boundary();
}

/* A transaction, or a part of one that the receiver acts on, is complete. */
static void
plugin_boundary(void)
{
	if (plugin_batch == NULL || plugin_batch->mode == BATCH_OFF || plugin_batch->count == 0)
		return;
	if (plugin_batch->mode == BATCH_HOLD && ls_may_hold_commits() &&
		!plugin_batch_is_older(HOLD_MS))
		plugin_open_batch();
	else
		plugin_flush();
}

/* Announces that a commit is held, before any keepalive can cover it. */
static void
plugin_open_batch(void)
{
	if (plugin_batch->open)
		return;
	plugin_batch->open = true;
	plugin_send(MARKER, NULL, false);
}

static void
plugin_message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn,
			   bool transactional, const char *prefix, Size size, const char *content)
{
	plugin_pgoutput.message_cb(ctx, txn, lsn, transactional, prefix, size, content);
	if (!transactional)
		plugin_boundary();
}

static void
plugin_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.prepare_cb(ctx, txn, lsn);
	plugin_boundary();
}

static void
plugin_commit_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.commit_prepared_cb(ctx, txn, lsn);
	plugin_boundary();
}

static void
plugin_rollback_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
						 XLogRecPtr prepare_end_lsn, TimestampTz prepare_time)
{
	plugin_pgoutput.rollback_prepared_cb(ctx, txn, prepare_end_lsn, prepare_time);
	plugin_boundary();
}

static void
plugin_stream_stop(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	plugin_pgoutput.stream_stop_cb(ctx, txn);
	plugin_boundary();
}

static void
plugin_stream_abort(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.stream_abort_cb(ctx, txn, lsn);
	plugin_boundary();
}

static void
plugin_stream_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.stream_prepare_cb(ctx, txn, lsn);
	plugin_boundary();
}

static void
plugin_stream_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
	plugin_pgoutput.stream_commit_cb(ctx, txn, lsn);
	plugin_boundary();
}
