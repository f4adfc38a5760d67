/*
 * self_check_test.c - which readers and tables of resource managers are taken for PostgreSQL's own.
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/nbtxlog.h"

#include "replay/self_check.h"
#include "tap.h"

#define SEGMENT (16 * 1024 * 1024)
#define BUFFER 1024
#define START UINT64CONST(0x3000028)

/* PostgreSQL's, which is not linked. */
void heap_redo(XLogReaderState *record) {}
void heap2_redo(XLogReaderState *record) {}
void btree_redo(XLogReaderState *record) {}

static void
our_redo(XLogReaderState *record)
{
}

static void
foreign_redo(XLogReaderState *record)
{
}

/* ---- The reader ---- */

static char memory[3 * BUFFER];
static char *const buffer = memory + BUFFER;
static DecodedXLogRecord first;
static DecodedXLogRecord last;
static XLogReaderState reader;

/* A reader in the middle of two decoded records, the first of which is replayed. */
static void
set_up(void)
{
	memset(&first, 0, sizeof(first));
	first.lsn = START;
	first.next_lsn = START + 64;
	first.header.xl_tot_len = 60;
	first.main_data_len = 20;
	first.max_block_id = -1;
	last = first;
	last.lsn = START + 64;
	last.next_lsn = START + 128;
	memset(&reader, 0, sizeof(reader));
	reader.segcxt.ws_segsize = SEGMENT;
	reader.record = reader.decode_queue_head = &first;
	reader.decode_queue_tail = &last;
	reader.ReadRecPtr = first.lsn;
	reader.EndRecPtr = first.next_lsn;
	reader.DecodeRecPtr = last.lsn;
	reader.NextRecPtr = last.next_lsn;
	reader.decode_buffer = buffer;
	reader.decode_buffer_size = BUFFER;
	reader.decode_buffer_head = buffer;
	reader.decode_buffer_tail = buffer + 200;
}

static void
passes(const char *name)
{
	const char *difference = ls_reader_difference(&reader, SEGMENT);

	ok(difference == NULL, "%s: as expected (%s)", name, difference == NULL ? "" : difference);
	set_up();
}

static void
refused(const char *name)
{
	ok(ls_reader_difference(&reader, SEGMENT) != NULL, "%s: not as expected", name);
	set_up();
}

static void
test_reader(void)
{
	set_up();
	passes("a reader with one record ahead");
	reader.decode_queue_tail = &first;
	reader.DecodeRecPtr = first.lsn;
	reader.NextRecPtr = first.next_lsn;
	passes("one with nothing ahead");
	reader.decode_buffer = reader.decode_buffer_head = reader.decode_buffer_tail = NULL;
	passes("one that has only decoded a record larger than its buffer");
	reader.decode_buffer_tail = buffer + BUFFER;
	passes("one whose buffer is full");
	first.max_block_id = XLR_MAX_BLOCK_ID;
	passes("a record with as many blocks as there can be");

	reader.record = NULL;
	refused("no record");
	reader.decode_queue_head = &last;
	refused("another record at the head of the queue");
	reader.decode_queue_tail = NULL;
	refused("a queue without an end");
	reader.ReadRecPtr++;
	refused("a reader behind its record");
	reader.EndRecPtr = 0;
	refused("a reader without an end of its record");
	first.next_lsn = reader.EndRecPtr = first.lsn;
	refused("a record of no length");
	last.lsn = START - 64;
	refused("a queue that ends before it begins");
	reader.DecodeRecPtr = START - 64;
	refused("a record that was not decoded");
	reader.NextRecPtr = START;
	refused("a next record that is the present one");
	first.header.xl_tot_len = SizeOfXLogRecord - 1;
	refused("a record shorter than its header");
	first.main_data_len = 61;
	refused("data longer than the record");
	first.max_block_id = XLR_MAX_BLOCK_ID + 1;
	refused("a block too many");
	reader.segcxt.ws_segsize = SEGMENT * 2;
	refused("segments of another size");
	reader.decode_buffer_head = buffer - 1;
	refused("a buffer that is read before its start");
	reader.decode_buffer_tail = buffer + BUFFER + 1;
	refused("a buffer that is written beyond its end");
}

/* ---- Resource managers ---- */

#define PG_RMGR(symname, name, ...) {.rm_name = name, .rm_redo = our_redo},
static RmgrData table[] = {
#include "access/rmgrlist.h"
};

static void (*stock[RM_MAX_BUILTIN_ID + 1]) (XLogReaderState *record);

static const char *
difference_of_table(void)
{
	return ls_redo_difference(table, our_redo, stock);
}

static void
test_table(void)
{
	stock[RM_HEAP_ID] = heap_redo;
	stock[RM_HEAP2_ID] = heap2_redo;
	stock[RM_BTREE_ID] = btree_redo;
	ok(difference_of_table() == NULL, "PostgreSQL's own resource managers are as expected");

	for (int id = 0; id <= RM_MAX_BUILTIN_ID; id++)
	{
		const char *name = table[id].rm_name;

		table[id].rm_redo = foreign_redo;
		ok(difference_of_table() != NULL, "redo of %s that another library has replaced later", name);
		table[id].rm_redo = our_redo;
		table[id].rm_name = "other";
		ok(difference_of_table() != NULL, "a resource manager in place of %s", name);
		table[id].rm_name = NULL;
		ok(difference_of_table() != NULL, "no resource manager in place of %s", name);
		table[id].rm_name = name;
	}
	for (int i = 0; i < 3; i++)
	{
		RmgrId		id = i == 0 ? RM_HEAP_ID : i == 1 ? RM_HEAP2_ID : RM_BTREE_ID;
		void		(*before) (XLogReaderState *record) = stock[id];

		stock[id] = foreign_redo;
		ok(difference_of_table() != NULL, "redo of %s that another library had replaced before", table[id].rm_name);
		stock[id] = before;
	}
	ok(difference_of_table() == NULL, "and in the end all is as it was");
}

int
main(void)
{
	test_reader();
	test_table();
	return done_testing();
}
