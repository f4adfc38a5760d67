/*
 * tap.h - what the C tests print: the protocol that prove reads.
 */
#ifndef LOCKSTEP_TAP_H
#define LOCKSTEP_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/* the C library's, as the server's own are not linked */
#undef printf
#undef vprintf

static int	tap_count = 0;
static int	tap_failed = 0;

static void __attribute__((format(printf, 2, 3)))
ok(bool passed, const char *format,...)
{
	va_list		args;

	tap_failed += passed ? 0 : 1;
	printf("%sok %d - ", passed ? "" : "not ", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

static int
done_testing(void)
{
	printf("1..%d\n", tap_count);
	return tap_failed == 0 ? 0 : 1;
}

#endif							/* LOCKSTEP_TAP_H */
