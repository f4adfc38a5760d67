/*
 * slice_rule.c - what the kernel's answer to a request for a time slice means.
 *
 * Decided without I/O; extension/test/unit/slice_rule_test.c has the table. Linux
 * before 6.12 takes a request for a normal process and forgets its slice, so only
 * what is read back tells. Still older ones, and filters of system calls, return
 * one of several errors.
 */
#include "postgres.h"

#include <errno.h>

#include "priority/slice_rule.h"

/* error: 0, or errno of what failed; has_ns: read back. */
LsSliceAnswer
ls_slice_answer(int error, uint64 asked_ns, uint64 has_ns)
{
	switch (error)
	{
		case 0:
			if (asked_ns == LS_SLICE_DEFAULT)
				return has_ns == LS_SLICE_SHORT_NS ? LS_SLICE_UNKNOWN : LS_SLICE_DONE;
			return has_ns == asked_ns ? LS_SLICE_DONE : LS_SLICE_UNKNOWN;
		case EINVAL:
		case E2BIG:
		case ENOSYS:
			return LS_SLICE_UNKNOWN;
		case ESRCH:
			return LS_SLICE_GONE;
		default:
			return LS_SLICE_REFUSED;
	}
}
