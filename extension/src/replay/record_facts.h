/*
 * record_facts.h - what a record alone says of how it is dispatched.
 */
#ifndef LOCKSTEP_RECORD_FACTS_H
#define LOCKSTEP_RECORD_FACTS_H

#include "access/xlogreader.h"
#include "storage/block.h"

#include "replay/memory_hints.h"

/* Slots of the table of blocks; two blocks of one slot count as the same block. */
#define LS_BLOCK_SLOTS (32 * 1024)

typedef struct LsFacts
{
	uint8		class;			/* LsClass */
	uint8		cause;			/* LsCause */
	bool		hot;			/* both are for hot standby */
	bool		enters_space;	/* redo may enter the free space of block 0 in a map */
	uint8		blocks;			/* number of slots, 0 to LS_BLOCKS */
	uint16		slots[LS_BLOCKS];	/* places of the first blocks in the table of blocks */
	BlockNumber space_block;	/* the map's block, if redo may enter free space */
} LsFacts;

extern void ls_facts_of(const DecodedXLogRecord *record, bool hot, LsFacts *facts);
extern uint16 ls_block_slot(const DecodedBkpBlock *block);

#endif							/* LOCKSTEP_RECORD_FACTS_H */
