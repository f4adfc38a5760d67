/*
 * print_classes.c - prints the class of each record that it reads.
 *
 * crates/wal has the rules of record_class.c once more, for those who have no server; its
 * tests compare both. A record is a line of words:
 *
 *   RMGR INFO XID OVERSIZED MAIN FORK[:ID[:IMAGE[:NUMBER]]] ...
 *
 * the first three decimal, MAIN in hexadecimal or "-", and for each block its fork, where IDs are left out
 * its ID, 1 if its image is restored, and its number, 0 if that is left out. The answer is a line: class
 * and cause (0 if it has none) before consistency, the same in hot standby, whether redo may change
 * the free space map, whether it adds heap tuples, and whether it clears bits of the visibility map. If the
 * line is "map BLOCK" instead, the answer is the blocks of both maps for heap block BLOCK.
 */
#include "postgres.h"

#include "replay/record_class.h"

#undef printf
#undef fprintf

#define MAX_LINE 4096

/* as the server allocates one: with all its blocks */
static union
{
	DecodedXLogRecord record;
	char		memory[offsetof(DecodedXLogRecord, blocks) +
					   (XLR_MAX_BLOCK_ID + 1) * sizeof(DecodedBkpBlock)];
}			decoded;

/* with zeros behind it: record_class.c relies on complete records */
static char main_data[MAX_LINE];

static void
set_main_data(const char *hex)
{
	unsigned int byte;

	memset(main_data, 0, sizeof(main_data));
	decoded.record.main_data = main_data;
	for (int i = 0; sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
		main_data[i] = (char) byte;
}

static void
add_block(const char *word)
{
	DecodedXLogRecord *record = &decoded.record;
	int			fork = atoi(word);
	const char *id = strchr(word, ':');
	const char *image = id == NULL ? NULL : strchr(id + 1, ':');
	const char *number = image == NULL ? NULL : strchr(image + 1, ':');
	int			place = id == NULL ? record->max_block_id + 1 : atoi(id + 1);
	DecodedBkpBlock *block;

	if (place > XLR_MAX_BLOCK_ID)
		exit(2);
	record->max_block_id = place;
	block = &record->blocks[place];
	block->in_use = true;
	block->forknum = fork;
	block->apply_image = image != NULL && atoi(image + 1) != 0;
	block->blkno = number == NULL ? 0 : (BlockNumber) strtoul(number + 1, NULL, 10);
}

static void
print_class(char *line)
{
	DecodedXLogRecord *record = &decoded.record;
	LsCause		cause = LS_CAUSE_NONE;
	LsCause		hot_cause = LS_CAUSE_NONE;
	LsClass		class;
	LsClass		hot_class;
	char	   *word = strtok(line, " \n");

	memset(&decoded, 0, sizeof(decoded));
	record->max_block_id = -1;
	for (int place = 0; word != NULL; place++, word = strtok(NULL, " \n"))
	{
		if (place == 0)
			record->header.xl_rmid = atoi(word);
		else if (place == 1)
			record->header.xl_info = atoi(word);
		else if (place == 2)
			record->header.xl_xid = (TransactionId) strtoul(word, NULL, 10);
		else if (place == 3)
			record->oversized = atoi(word) != 0;
		else if (place == 4)
			set_main_data(word);
		else
			add_block(word);
	}
	class = ls_classify(record, &cause);
	hot_class = ls_classify_hot(record, &hot_cause);
	/* removals and what clears maps have a cause for the case that they do not run ahead */
	printf("%d %d %d %d %d %d %d\n", (int) class, (int) cause, (int) hot_class, (int) hot_cause,
		   ls_may_change_free_space_map(record), ls_adds_heap_tuples(record),
		   ls_clears_visibility_map(record));
}

int
main(void)
{
	char		line[MAX_LINE];
	unsigned int block;

	while (fgets(line, sizeof(line), stdin) != NULL)
	{
		if (sscanf(line, "map %u", &block) == 1)
			printf("%u %u\n", ls_free_space_map_block(block), ls_visibility_map_block(block));
		else
			print_class(line);
	}
	return 0;
}
