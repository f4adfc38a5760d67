/*
 * stretch_rule_test.c - where in the ring of decoded records a helper may decode, and that PostgreSQL's
 * reader could go on after whatever it has decoded there.
 */
#include "postgres.h"

#include "replay/stretch_rule.h"
#include "tap.h"

#define SIZE (8 * LS_STRETCH_LEAST)

typedef struct RoomRow
{
	const char *name;
	Size		head;
	Size		tail;
	Size		begin;
	Size		room;			/* 0: begin does not matter */
	bool		may_wait;
} RoomRow;

static const RoomRow room_rows[] = {
	{"an empty ring", 0, 0, 0, SIZE, false},
	{"a ring that has begun", 0, 4096, 4096, SIZE - 4096, false},
	{"just enough before the end", 4096, SIZE - LS_STRETCH_LEAST, SIZE - LS_STRETCH_LEAST, LS_STRETCH_LEAST, true},
	{"too little before the end and at the begin", 4096, SIZE - LS_STRETCH_LEAST + 8, 0, 0, true},
	{"too little before the end, enough at the begin", LS_STRETCH_LEAST + 8, SIZE - 8, 0, LS_STRETCH_LEAST, true},
	{"eight bytes less there", LS_STRETCH_LEAST, SIZE - 8, 0, 0, true},
	{"nothing before the end, head at the begin", 0, SIZE, 0, 0, true},
	{"little is decoded, across the end", SIZE - 4096, 4096, 4096, SIZE - 8192 - 8, false},
	{"half is decoded, across the end", SIZE - 4096, SIZE / 2 - 4096, SIZE / 2 - 4096, SIZE / 2 - 8, true},
	{"eight bytes less than half", SIZE - 4096, SIZE / 2 - 4104, SIZE / 2 - 4104, SIZE / 2, false},
	{"tail just below head", 4096, 4088, 0, 0, true},
};

static void
test_rooms(void)
{
	for (int i = 0; i < lengthof(room_rows); i++)
	{
		const RoomRow *row = &room_rows[i];
		Size		begin;
		Size		room = ls_stretch_room(SIZE, row->head, row->tail, &begin);

		ok(room == row->room && (room == 0 || begin == row->begin), "%s: %zu from %zu", row->name,
		   row->room, row->begin);
		ok(ls_stretch_may_wait(SIZE, row->head, row->tail) == row->may_wait, "%s: %s", row->name,
		   row->may_wait ? "waits" : "does not wait");
	}
}

/* Whatever lies in the ring: the part is free, and a tail at its end is not taken for an empty ring. */
static void
test_all_states(void)
{
	int			wrong = 0;

	for (Size head = 0; head < SIZE; head += 4096)
		for (Size tail = 0; tail <= SIZE; tail += 4096)
		{
			Size		begin;
			Size		room;

			/* the reader keeps to this: an empty ring is at its begin, and tail is never just at head */
			if (head == tail && head != 0)
				continue;
			room = ls_stretch_room(SIZE, head, tail, &begin);
			if (room == 0)
				continue;
			if (begin + room > SIZE || (begin == tail && tail >= head ? false : begin + room >= head) ||
				(begin != tail && begin != 0))
				wrong++;
		}
	ok(wrong == 0, "no part of the ring that is in use is given away (%d are)", wrong);
}

int
main(void)
{
	test_rooms();
	test_all_states();
	return done_testing();
}
