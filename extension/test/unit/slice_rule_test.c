/*
 * slice_rule_test.c - answers of kernels with and without slices.
 */
#include "postgres.h"

#include <errno.h>

#include "priority/slice_rule.h"
#include "tap.h"

/* a default of a kernel that has slices, in ns */
#define BASE_NS 2800000

typedef struct AnswerRow
{
	const char *name;
	int			error;
	uint64		asked_ns;
	uint64		has_ns;
	LsSliceAnswer answer;
} AnswerRow;

static const AnswerRow rows[] = {
	{"taken", 0, LS_SLICE_SHORT_NS, LS_SLICE_SHORT_NS, LS_SLICE_DONE},
	{"taken and forgotten, as before 6.12", 0, LS_SLICE_SHORT_NS, 0, LS_SLICE_UNKNOWN},
	{"read back as the default", 0, LS_SLICE_SHORT_NS, BASE_NS, LS_SLICE_UNKNOWN},
	{"back to the default", 0, LS_SLICE_DEFAULT, BASE_NS, LS_SLICE_DONE},
	{"still short after that", 0, LS_SLICE_DEFAULT, LS_SLICE_SHORT_NS, LS_SLICE_UNKNOWN},
	{"not a valid value", EINVAL, LS_SLICE_SHORT_NS, 0, LS_SLICE_UNKNOWN},
	{"a structure too large for the kernel", E2BIG, LS_SLICE_SHORT_NS, 0, LS_SLICE_UNKNOWN},
	{"no such system call", ENOSYS, LS_SLICE_SHORT_NS, 0, LS_SLICE_UNKNOWN},
	{"the process has ended", ESRCH, LS_SLICE_SHORT_NS, 0, LS_SLICE_GONE},
	{"not permitted", EPERM, LS_SLICE_SHORT_NS, 0, LS_SLICE_REFUSED},
	{"an error that nobody has seen yet", EBUSY, LS_SLICE_DEFAULT, BASE_NS, LS_SLICE_REFUSED},
};

int
main(void)
{
	for (int i = 0; i < lengthof(rows); i++)
	{
		LsSliceAnswer answer = ls_slice_answer(rows[i].error, rows[i].asked_ns, rows[i].has_ns);

		ok(answer == rows[i].answer, "%s (is %d)", rows[i].name, answer);
	}
	return done_testing();
}
