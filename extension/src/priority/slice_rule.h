/*
 * slice_rule.h - what the kernel's answer to a request for a time slice means.
 */
#ifndef LOCKSTEP_SLICE_RULE_H
#define LOCKSTEP_SLICE_RULE_H

/* The shortest slice that Linux gives, in ns. */
#define LS_SLICE_SHORT_NS UINT64CONST(100000)
/* What is asked for to get the kernel's default. */
#define LS_SLICE_DEFAULT UINT64CONST(0)

typedef enum LsSliceAnswer
{
	LS_SLICE_DONE,
	LS_SLICE_UNKNOWN,			/* the kernel has none of a process's own, or
								 * not under the process's policy */
	LS_SLICE_GONE,				/* no such process any more */
	LS_SLICE_REFUSED			/* the error says why */
} LsSliceAnswer;

extern LsSliceAnswer ls_slice_answer(int error, uint64 asked_ns, uint64 has_ns);

#endif							/* LOCKSTEP_SLICE_RULE_H */
