/*
 * slow_reads.c - reads and advises blocks of files, for slow_reads.rs.
 *
 *   slow_reads STEP...
 *
 * open:PATH opens a file and closes the one before. read:N, pair:N and advise:N read block N,
 * read blocks N and N + 1 in one call, and ask for block N ahead. write:N writes block N. sleep:MS
 * sleeps. child:N reads block N in a process of its own, alarmed:N while an alarm goes off
 * every 100 us. Each read prints the nanoseconds that it took.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 8192

static char blocks[2][BLOCK];

static void
ring(int sig)
{
	(void) sig;
}

static void
check(int ok, const char *step)
{
	if (ok)
		return;
	perror(step);
	exit(1);
}

static void
timed_read(int fd, long block, int count, const char *step)
{
	struct iovec to[2] = {{blocks[0], BLOCK}, {blocks[1], BLOCK}};
	struct timespec before;
	struct timespec after;
	ssize_t		got;

	clock_gettime(CLOCK_MONOTONIC, &before);
	if (count == 1)
		got = pread(fd, blocks[0], BLOCK, block * BLOCK);
	else
		got = preadv(fd, to, count, block * BLOCK);
	clock_gettime(CLOCK_MONOTONIC, &after);
	check(got == (ssize_t) count * BLOCK, step);
	printf("%ld\n", (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
	fflush(stdout);
}

static void
alarmed_read(int fd, long block, const char *step)
{
	struct itimerval often = {{0, 100}, {0, 100}};
	struct itimerval never = {{0, 0}, {0, 0}};

	signal(SIGALRM, ring);
	setitimer(ITIMER_REAL, &often, NULL);
	timed_read(fd, block, 1, step);
	setitimer(ITIMER_REAL, &never, NULL);
}

static int
take(const char *step, int fd)
{
	const char *value = strchr(step, ':') + 1;
	long		number = atol(value);

	if (strncmp(step, "open:", 5) == 0)
	{
		if (fd >= 0)
			close(fd);
		fd = open(value, O_RDWR);
		check(fd >= 0, step);
	}
	else if (strncmp(step, "read:", 5) == 0)
		timed_read(fd, number, 1, step);
	else if (strncmp(step, "pair:", 5) == 0)
		timed_read(fd, number, 2, step);
	else if (strncmp(step, "alarmed:", 8) == 0)
		alarmed_read(fd, number, step);
	else if (strncmp(step, "advise:", 7) == 0)
		check(posix_fadvise(fd, number * BLOCK, BLOCK, POSIX_FADV_WILLNEED) == 0, step);
	else if (strncmp(step, "write:", 6) == 0)
		check(pwrite(fd, blocks[0], BLOCK, number * BLOCK) == BLOCK, step);
	else if (strncmp(step, "sleep:", 6) == 0)
		usleep((useconds_t) number * 1000);
	else if (fork() == 0)
	{
		timed_read(fd, number, 1, step);
		exit(0);
	}
	else
		wait(NULL);
	return fd;
}

int
main(int argc, char **argv)
{
	int			fd = -1;

	for (int i = 1; i < argc; i++)
		fd = take(argv[i], fd);
	return 0;
}
