/*
 * record_facts_test.c - what a record alone says of its dispatch, and which barriers leave files as they are.
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/multixact.h"
#include "access/nbtxlog.h"
#include "access/rmgr.h"
#include "access/xact.h"
#include "catalog/pg_control.h"
#include "catalog/storage_xlog.h"
#include "storage/standbydefs.h"

#include "replay/record_class.h"
#include "replay/record_facts.h"
#include "tap.h"

/* as the server allocates one: with all its blocks */
static union
{
	DecodedXLogRecord record;
	char		memory[offsetof(DecodedXLogRecord, blocks) +
					   (XLR_MAX_BLOCK_ID + 1) * sizeof(DecodedBkpBlock)];
}			decoded;

static char main_data[64];

static DecodedXLogRecord *
record_of(RmgrId manager, uint8 info, int blocks)
{
	DecodedXLogRecord *record = &decoded.record;

	memset(&decoded, 0, sizeof(decoded));
	record->header.xl_rmid = manager;
	record->header.xl_info = info;
	record->main_data = main_data;
	record->max_block_id = blocks - 1;
	for (int id = 0; id < blocks; id++)
	{
		record->blocks[id].in_use = true;
		record->blocks[id].blkno = 100 + id;
	}
	return record;
}

static void
test_facts(void)
{
	LsFacts		facts;
	DecodedXLogRecord *record = record_of(RM_HEAP_ID, XLOG_HEAP_INSERT, 1);

	ls_facts_of(record, false, &facts);
	ok(facts.class == LS_CLASS_AHEAD && facts.cause == LS_CAUSE_NONE && !facts.hot,
	   "an insertion may run ahead");
	ok(facts.blocks == 1 && facts.slots[0] == ls_block_slot(&record->blocks[0]), "of one block");
	ok(facts.enters_space && facts.space_block == ls_free_space_map_block(100),
	   "of which it may enter free space");
	record->blocks[0].blkno = 101;
	ok(facts.slots[0] != ls_block_slot(&record->blocks[0]), "the next block has another slot");

	record = record_of(RM_HEAP_ID, XLOG_HEAP_DELETE, 1);
	ls_facts_of(record, true, &facts);
	ok(facts.class == LS_CLASS_AHEAD && facts.hot && !facts.enters_space, "a deletion enters none");

	record = record_of(RM_HEAP2_ID, XLOG_HEAP2_MULTI_INSERT, 1);
	record->blocks[0].in_use = false;
	ls_facts_of(record, false, &facts);
	ok(!facts.enters_space, "nor does a record without a first block");

	record = record_of(RM_GIST_ID, 0, LS_BLOCKS + 2);
	ls_facts_of(record, false, &facts);
	ok(facts.class == LS_CLASS_INLINE && facts.cause == LS_CAUSE_KIND && facts.blocks == LS_BLOCKS,
	   "slots are of the first blocks only");

	record = record_of(RM_XACT_ID, XLOG_XACT_COMMIT, 0);
	ls_facts_of(record, true, &facts);
	ok(facts.class == LS_CLASS_INLINE && facts.blocks == 0, "a commit has none");

	record = record_of(RM_XLOG_ID, XLOG_FPI_FOR_HINT, 1);
	record->blocks[0].forknum = FSM_FORKNUM;
	for (int hot = 0; hot <= 1; hot++)
	{
		ls_facts_of(record, hot, &facts);
		ok(facts.class == LS_CLASS_INLINE && facts.cause == LS_CAUSE_MAP,
		   "an image of a free space map has its turn, and is no barrier: %s", hot ? "hot" : "not hot");
	}

	record = record_of(RM_MULTIXACT_ID, XLOG_MULTIXACT_CREATE_ID, 0);
	ls_facts_of(record, false, &facts);
	ok(facts.class == LS_CLASS_INLINE, "a multixact is no barrier before consistency");
	ls_facts_of(record, true, &facts);
	ok(facts.class == LS_CLASS_BARRIER, "and is one in hot standby");
}

typedef struct FilesRow
{
	const char *name;
	RmgrId		manager;
	uint8		info;
	bool		keeps;
} FilesRow;

static const FilesRow files_rows[] = {
	{"a file that is made", RM_SMGR_ID, XLOG_SMGR_CREATE, false},
	{"a truncation", RM_SMGR_ID, XLOG_SMGR_TRUNCATE, false},
	{"a commit, which may drop files", RM_XACT_ID, XLOG_XACT_COMMIT, false},
	{"the commit of a prepared transaction", RM_XACT_ID, XLOG_XACT_COMMIT_PREPARED, false},
	{"an abort", RM_XACT_ID, XLOG_XACT_ABORT, false},
	{"a database", RM_DBASE_ID, 0, false},
	{"a tablespace", RM_TBLSPC_ID, 0, false},
	{"a map of relations", RM_RELMAP_ID, 0, false},
	{"a checkpoint", RM_XLOG_ID, XLOG_CHECKPOINT_ONLINE, false},
	{"another extension", RM_MIN_CUSTOM_ID, 0, false},
	{"a multixact", RM_MULTIXACT_ID, XLOG_MULTIXACT_CREATE_ID, true},
	{"truncation of multixacts", RM_MULTIXACT_ID, XLOG_MULTIXACT_TRUNCATE_ID, true},
	{"reuse of a page of a B-tree", RM_BTREE_ID, XLOG_BTREE_REUSE_PAGE, true},
	{"a change in place", RM_HEAP_ID, XLOG_HEAP_INPLACE, true},
	{"a lock", RM_STANDBY_ID, XLOG_STANDBY_LOCK, true},
};

int
main(void)
{
	test_facts();
	for (int i = 0; i < lengthof(files_rows); i++)
		ok(ls_keeps_files(record_of(files_rows[i].manager, files_rows[i].info, 0)) == files_rows[i].keeps,
		   "%s: files are %s", files_rows[i].name, files_rows[i].keeps ? "kept" : "perhaps not kept");
	return done_testing();
}
