/*
 * record_facts.c - what a record alone says of how it is dispatched: its class, where its blocks are in
 * dispatch's table, and which page of a free space map its redo may change.
 *
 * Nothing here asks for files, sessions or other records: that is left to dispatch.c. So the process that
 * decodes the record can say it, be it the startup process or a helper (wal_reader.c).
 *
 * No state, no I/O.
 */
#include "postgres.h"

#include "compat.h"
#include "replay/record_class.h"
#include "replay/record_facts.h"

void
ls_facts_of(const DecodedXLogRecord *record, bool hot, LsFacts *facts)
{
	LsCause		cause = LS_CAUSE_NONE;

	facts->class = hot ? ls_classify_hot(record, &cause) : ls_classify(record, &cause);
	facts->cause = cause;
	facts->hot = hot;
	facts->blocks = Min(record->max_block_id + 1, LS_BLOCKS);
	for (int id = 0; id < facts->blocks; id++)
		facts->slots[id] = record->blocks[id].in_use ? ls_block_slot(&record->blocks[id]) : 0;
	facts->enters_space = record->max_block_id >= 0 && record->blocks[0].in_use &&
		ls_may_change_free_space_map(record);
	facts->space_block = facts->enters_space ? ls_free_space_map_block(record->blocks[0].blkno) : 0;
}

/* The block's place in dispatch's table of blocks. */
uint16
ls_block_slot(const DecodedBkpBlock *block)
{
	uint32		hash = LS_BLOCK_RELATION(block) * 0x9E3779B1U;

	hash = (hash ^ block->blkno ^ ((uint32) block->forknum << 28)) * 0x85EBCA6BU;
	return (hash ^ (hash >> 15)) % LS_BLOCK_SLOTS;
}
