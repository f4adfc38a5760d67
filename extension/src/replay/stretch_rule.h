/*
 * stretch_rule.h - where in the queue's memory a helper may decode (stretch_rule.c).
 */
#ifndef LOCKSTEP_STRETCH_RULE_H
#define LOCKSTEP_STRETCH_RULE_H

/* Least memory for a stretch: some records with an image of a page each. */
#define LS_STRETCH_LEAST (64 * 1024)

extern Size ls_stretch_room(Size size, Size head, Size tail, Size *begin);
extern bool ls_stretch_may_wait(Size size, Size head, Size tail);

#endif							/* LOCKSTEP_STRETCH_RULE_H */
