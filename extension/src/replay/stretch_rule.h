/*
 * stretch_rule.h - whether a helper is to read WAL, and where it may decode (stretch_rule.c).
 */
#ifndef LOCKSTEP_STRETCH_RULE_H
#define LOCKSTEP_STRETCH_RULE_H

/* Least memory for a stretch: some records with an image of a page each. */
#define LS_STRETCH_LEAST (64 * 1024)

/* What WAL of late consists of. All zero: nothing is known. */
typedef struct LsImages
{
	uint64		bytes;			/* of records, since it was last judged */
	uint64		images;			/* bytes of these that are images of pages */
	bool		dominate;		/* was it so when it was last judged? */
} LsImages;

/* Bytes of records after which it is judged anew. */
#define LS_JUDGED_BYTES (2 * 1024 * 1024)

extern void ls_images_count(LsImages *state, uint32 bytes, uint32 images);
extern Size ls_stretch_room(Size size, Size head, Size tail, Size *begin);
extern bool ls_stretch_may_wait(Size size, Size head, Size tail);

#endif							/* LOCKSTEP_STRETCH_RULE_H */
