/*
 * stretch_rule.c - whether a helper is to read WAL, and where in the queue's memory it may decode the next records.
 *
 * Whether, for lockstep.replay_read_helpers = auto: what a helper spares the startup process grows with the bytes
 * of records, for their checksum and copies, and what a stretch costs with their number. Measured with one helper
 * beside stock: WAL with half of its bytes or more in images is replayed 5 to 9 % faster where helpers read, other
 * WAL 0 to 40 % slower. So they read while images dominate.
 *
 * Where:
 * That memory is the decode buffer of PostgreSQL's reader: a ring, of which the part from head to tail holds
 * records. A helper gets a part of the rest that begins where the reader itself would put its next record, so
 * that the ring is afterwards as the reader would have left it. Tail must not come to head from below: the
 * reader takes that for an empty ring.
 *
 * Decided without I/O; extension/test/unit/stretch_rule_test.c has the table. All are distances from the
 * buffer's begin, in bytes.
 */
#include "postgres.h"

#include "replay/stretch_rule.h"

/* Percent of the bytes in images from which these dominate, and below which they do so no longer. */
#define LS_BEGIN_PERCENT 50
#define LS_END_PERCENT 40

static Size stretch_rule_below(Size head, Size tail);

/* A record was decoded. */
void
ls_images_count(LsImages *state, uint32 bytes, uint32 images)
{
	state->bytes += bytes;
	state->images += images;
	if (state->bytes < LS_JUDGED_BYTES)
		return;
	state->dominate = state->images * 100 >= state->bytes * (state->dominate ? LS_END_PERCENT : LS_BEGIN_PERCENT);
	state->bytes = state->images = 0;
}

/* Length of the part, and where it begins; 0: there is too little room. */
Size
ls_stretch_room(Size size, Size head, Size tail, Size *begin)
{
	Size		room = tail >= head ? size - tail : stretch_rule_below(head, tail);

	*begin = tail;
	if (room < LS_STRETCH_LEAST && tail >= head)
	{
		*begin = 0;
		room = stretch_rule_below(head, 0);
	}
	return room < LS_STRETCH_LEAST ? 0 : room;
}

/* Is so much decoded that it is better to wait for room than to decode without a helper? */
bool
ls_stretch_may_wait(Size size, Size head, Size tail)
{
	return (tail >= head ? tail - head : size - (head - tail)) >= size / 2;
}

static Size
stretch_rule_below(Size head, Size tail)
{
	return head - tail > MAXIMUM_ALIGNOF ? head - tail - MAXIMUM_ALIGNOF : 0;
}
