/*
 * within_memory_test.c - which pointers of a record that may be another one by now are followed
 * (memory_hints.h).
 */
#include "postgres.h"

#include "replay/memory_hints.h"
#include "tap.h"

static char memory[64];

typedef struct Row
{
	const char *name;
	intptr_t	start;
	Size		size;
	bool		is_within;
} Row;

int
main(void)
{
	intptr_t	begin = (intptr_t) memory;
	intptr_t	end = begin + sizeof(memory);
	const Row	rows[] = {
		{"its first bytes", begin, 16, true},
		{"all of it", begin, 64, true},
		{"its last bytes", end - 16, 16, true},
		{"one byte before it", begin - 1, 16, false},
		{"one byte beyond it", end - 15, 16, false},
		{"what begins behind it", end, 1, false},
		{"more than it", begin, 65, false},
		{"NULL", 0, 16, false},
		{"the last address", -1, 16, false},
		{"the last address but 15", -16, 16, false},
		{"a size beyond all addresses", begin + 8, (Size) -8, false},
	};

	for (int i = 0; i < lengthof(rows); i++)
		ok(ls_is_within((const void *) rows[i].start, rows[i].size, memory, sizeof(memory)) ==
		   rows[i].is_within, "%s %s followed", rows[i].name,
		   rows[i].is_within ? "are" : "are not");
	return done_testing();
}
