/*
 * self_check.c - is the server what parallel replay was written for?
 *
 * PG_MODULE_MAGIC compares the major version and a few sizes. A patched server may have the same and another
 * XLogReaderState, and another library may have put its functions into the table of resource managers.
 * Parallel replay writes into the reader, and helpers call these functions. So pipeline.c asks before it begins,
 * and replay stays in one process if something is not PostgreSQL's own.
 *
 * Decided without I/O; extension/test/unit/self_check_test.c has the table. The texts name what differs.
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/nbtxlog.h"
#include "access/rmgr.h"

#include "replay/self_check.h"

/* Names of PostgreSQL's resource managers, as of the headers that this library was built with. */
#define PG_RMGR(symname, name, ...) name,
static const char *const self_check_names[] = {
#include "access/rmgrlist.h"
};
#undef PG_RMGR

/*
 * What differs in the reader of the record whose redo runs now; NULL: nothing. segment_size: of a WAL segment, in
 * bytes.
 */
const char *
ls_reader_difference(const XLogReaderState *reader, int segment_size)
{
	const DecodedXLogRecord *record = reader->record;
	const char *end = reader->decode_buffer + reader->decode_buffer_size;

	if (record == NULL || record != reader->decode_queue_head || reader->decode_queue_tail == NULL)
		return "the record that is replayed is not the first of the reader's queue";
	if (record->lsn != reader->ReadRecPtr || record->next_lsn != reader->EndRecPtr ||
		record->lsn >= record->next_lsn)
		return "the reader is not at the record that is replayed";
	if (reader->decode_queue_tail->lsn < record->lsn || reader->DecodeRecPtr < record->lsn ||
		reader->NextRecPtr < record->next_lsn)
		return "the reader has decoded less than is replayed";
	if (record->header.xl_tot_len < SizeOfXLogRecord || record->main_data_len > record->header.xl_tot_len ||
		record->max_block_id < -1 || record->max_block_id > XLR_MAX_BLOCK_ID)
		return "the record that is replayed has an impossible length";
	if (reader->segcxt.ws_segsize != segment_size)
		return "the reader's WAL segments have another size";
	if (reader->decode_buffer != NULL &&
		(reader->decode_buffer_head < reader->decode_buffer || reader->decode_buffer_head > end ||
		 reader->decode_buffer_tail < reader->decode_buffer || reader->decode_buffer_tail > end))
		return "the reader's buffer is not where its records are";
	return NULL;
}

/*
 * What differs in the table of resource managers, where our function must be the redo of all of PostgreSQL's;
 * NULL: nothing. stock: the functions that were there before.
 */
const char *
ls_redo_difference(const RmgrData *table, void (*ours) (XLogReaderState *record),
				   void (*const *stock) (XLogReaderState *record))
{
	if (stock[RM_HEAP_ID] != heap_redo || stock[RM_HEAP2_ID] != heap2_redo || stock[RM_BTREE_ID] != btree_redo)
		return "another library had replaced the redo of heap or B-tree before this one was loaded";
	for (int id = 0; id <= RM_MAX_BUILTIN_ID; id++)
	{
		if (table[id].rm_redo != ours)
			return "another library has replaced the redo of a resource manager";
		if (table[id].rm_name == NULL || strcmp(table[id].rm_name, self_check_names[id]) != 0)
			return "a resource manager has another name";
	}
	return NULL;
}
