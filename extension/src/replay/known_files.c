/*
 * known_files.c - PostgreSQL's handles of the files that records of late were about.
 *
 * Dispatch and execution ask for the size of each block's file. PostgreSQL remembers sizes
 * in its handle, but to find the handle it hashes the name, each time.
 *
 * A handle of the startup process lives until that drops files. Rule 10 of README.md: records that do
 * are barriers that begin a generation. Helpers free all handles when they come to a record of the
 * next generation (execute.c), which is after the barrier, and before they sleep (helper.c). Nobody
 * tells helpers which files are dropped, so handles that they only closed would stay for ever. The
 * startup process forgets handles when a generation begins, since others may have replayed until then,
 * and after each barrier (pipeline.c), since read_ahead.c may be behind dispatch.
 *
 * Runs in the startup process and in replay helpers. Memory: one small table for each process.
 */
#include "postgres.h"

#include "compat.h"
#include "replay/known_files.h"

#define LS_KNOWN_FILES 64		/* a power of two */

static struct
{
	BufferTag	name;			/* tag of block 0 of the main fork */
	SMgrRelation files;			/* NULL: none */
}			known_files_table[LS_KNOWN_FILES];

SMgrRelation
ls_known_files(const DecodedBkpBlock *block)
{
	uint32		slot = (LS_BLOCK_RELATION(block) * 0x9E3779B1U) >> 26;
	BufferTag	name;

	ls_block_tag(block, &name);
	name.forkNum = MAIN_FORKNUM;
	name.blockNum = 0;
	if (known_files_table[slot].files == NULL || !ls_tags_equal(&name, &known_files_table[slot].name))
	{
		known_files_table[slot].name = name;
		known_files_table[slot].files = ls_smgr_of(block);
	}
	return known_files_table[slot].files;
}

/* Blocks of a fork as the startup process knows them, 0 if the file does not exist. */
BlockNumber
ls_size_of_fork(SMgrRelation files, ForkNumber fork)
{
	if (files->smgr_cached_nblocks[fork] == InvalidBlockNumber && !smgrexists(files, fork))
		return 0;
	return smgrnblocks(files, fork);
}

void
ls_forget_known_files(void)
{
	for (int i = 0; i < LS_KNOWN_FILES; i++)
		known_files_table[i].files = NULL;
}

/* Helper: closes all files, and frees the handles of them. */
void
ls_close_files(void)
{
	ls_forget_known_files();
	ls_free_handles();
}
