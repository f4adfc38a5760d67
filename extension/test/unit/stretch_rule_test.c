/*
 * stretch_rule_test.c - when a helper reads WAL, where in the ring of decoded records a helper may decode, and that PostgreSQL's
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

/* ---- Images ---- */

/* Do images dominate after much WAL, of whose bytes this percentage are images? */
static bool
dominate_after(LsImages *state, int percent)
{
	for (int bytes = 0; bytes <= LS_JUDGED_BYTES; bytes += 1000)
		ls_images_count(state, 1000, percent * 10);
	return state->dominate;
}

static void
test_images(void)
{
	static const struct
	{
		int			percent;
		bool		dominate;
	}			rows[] = {
		{0, false}, {49, false}, {50, true}, {49, true}, {40, true}, {39, false}, {49, false}, {100, true}, {0, false},
	};
	LsImages	state = {0};

	ls_images_count(&state, LS_JUDGED_BYTES - 1, LS_JUDGED_BYTES - 1);
	ok(!state.dominate, "little WAL says nothing");
	ls_images_count(&state, 1, 1);
	ok(state.dominate, "more does");
	ok(!dominate_after(&state, 0), "WAL without images follows");
	for (int i = 0; i < lengthof(rows); i++)
	{
		bool		dominate = dominate_after(&state, rows[i].percent);

		ok(dominate == rows[i].dominate, "%d %% after the rows before: %s", rows[i].percent, dominate ? "read" : "do not");
	}
}

int
main(void)
{
	test_images();
	test_rooms();
	test_all_states();
	return done_testing();
}
