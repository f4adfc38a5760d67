/*
 * slow_reads.c - storage whose reads take a while, in front of a kernel that has all in its cache.
 *
 * Purpose: LD_PRELOAD puts this library into a server of `lockstep-lab bench replay`
 * (slow_reads.rs compiles it and says how a case uses it). A read of a relation's block then
 * takes a set time from when the block was asked for.
 *
 * Model: storage that serves any number of reads at once, each in the same time, and a kernel's
 * cache that keeps nothing but what posix_fadvise(WILLNEED) asked for and nobody has read yet.
 *  - Advice notes the time for each block and returns at once, unless it is noted already.
 *  - A read of a noted block waits for what is left of the time since the note, and takes the
 *    note away: the next read of that block waits again.
 *  - A read of any other block waits for the whole time, also after the server wrote the block.
 *  - A read of several blocks ends when the last of them is there.
 *
 * Which files: those whose path is .../base/DATABASE/FILE or .../PG_VERSION/DATABASE/FILE (a
 * tablespace), where FILE begins with a digit. Never WAL. A descriptor's file is looked up once,
 * and again after close(). PostgreSQL opens and closes them with open() and close().
 *
 * Shared state: the file that LOCKSTEP_SLOW_READS names, mapped by all processes of the server
 * before the first fork. All fields are atomic and there is no lock. A note is one word, in the
 * one slot that its block can have, so a later note of another block replaces it: a block whose
 * note is lost takes the whole time. A note's time wraps after 16 s: an old note may then look new,
 * and its read may wait once more. Reads are early only if the 39 bits of two blocks in one
 * slot are equal.
 *
 * Limits: reads by io_uring are not seen (PostgreSQL 18 uses it only if configured). Only for
 * processes without threads, and where a long has 64 bits.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "system calls take offsets in one register");

#define BLOCK 8192
#define SLOTS (1 << 20)

/* Most blocks that one call of posix_fadvise() notes. */
#define MOST_ADVISED 1024

/* Descriptors whose file is remembered. */
#define MOST_FILES 65536

/* A note is bits of the block, never 0, above these bits of the time in microseconds. */
#define TIME_BITS 24
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)

/* slow_reads.rs knows the order of all fields before the slots. */
typedef struct
{
	_Atomic uint64_t latency_ns;	/* by the benchmark; 0: nothing is slow, nor noted */
	_Atomic uint64_t loaded;	/* programs that have loaded this library */
	_Atomic uint64_t notes;		/* blocks noted */
	_Atomic uint64_t reads;		/* blocks read */
	_Atomic uint64_t found;		/* those of them that had a note */
	_Atomic uint64_t delayed;	/* reads, of any number of blocks, that waited */
	_Atomic uint64_t slots[SLOTS];
} SlowReads;

static SlowReads *shared;

/* By descriptor: 0 not known yet, NO_RELATION, or what stands for the path of its file. */
static uint64_t files[MOST_FILES];

#define NO_RELATION 1

__attribute__((constructor)) static void
attach(void)
{
	const char *path = getenv("LOCKSTEP_SLOW_READS");
	int			fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0 && ftruncate(fd, sizeof(SlowReads)) == 0)
		shared = mmap(NULL, sizeof(SlowReads), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == NULL || shared == MAP_FAILED)
	{
		/* a server that is not slow would be measured as if it were */
		dprintf(STDERR_FILENO, "slow reads: cannot map %s: %s\n",
				path ? path : "LOCKSTEP_SLOW_READS", strerror(errno));
		_exit(1);
	}
	close(fd);
	atomic_fetch_add(&shared->loaded, 1);
}

static uint64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec;
}

static int
is_number(const char *from, const char *to)
{
	return from < to && strspn(from, "0123456789") >= (size_t) (to - from);
}

static int
is_relation(const char *path)
{
	const char *file = strrchr(path, '/');
	const char *database = file ? memrchr(path, '/', file - path) : NULL;
	const char *above = database ? memrchr(path, '/', database - path) : NULL;

	return above && is_number(database + 1, file) &&
		(strncmp(above, "/base/", 6) == 0 || strncmp(above, "/PG_", 4) == 0) &&
		is_number(file + 1, file + 2) &&
		strspn(file + 1, "0123456789_.abcdefghijklmnopqrstuvwxyz") == strlen(file + 1);
}

/* What stands for the file's path, or NO_RELATION. */
static uint64_t
look_up(int fd)
{
	char		link[32];
	char		path[PATH_MAX];
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);	/* FNV-1a */
	ssize_t		length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return NO_RELATION;
	path[length] = '\0';
	if (!is_relation(path))
		return NO_RELATION;
	for (const char *c = path; *c; c++)
		hash = (hash ^ (unsigned char) *c) * UINT64_C(0x100000001b3);
	return hash | 2;
}

static uint64_t
file_of(int fd)
{
	if (fd < 0 || fd >= MOST_FILES)
		return fd < 0 ? NO_RELATION : look_up(fd);
	if (files[fd] == 0)
		files[fd] = look_up(fd);
	return files[fd];
}

/* Is this file slow at present? Leaves errno alone. */
static int
is_slow(int fd)
{
	int			saved = errno;
	int			slow = atomic_load(&shared->latency_ns) != 0 && file_of(fd) != NO_RELATION;

	errno = saved;
	return slow;
}

/* The slot of a block, and its bits in a note. */
static _Atomic uint64_t *
slot_of(uint64_t file, uint64_t block, uint64_t *bits)
{
	uint64_t	hash = file + (block + 1) * UINT64_C(0x9e3779b97f4a7c15);

	hash = (hash ^ (hash >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	hash = (hash ^ (hash >> 27)) * UINT64_C(0x94d049bb133111eb);
	hash ^= hash >> 31;
	*bits = ((hash >> TIME_BITS) | 1) << TIME_BITS;
	return &shared->slots[hash % SLOTS];
}

static void
note(uint64_t file, uint64_t block)
{
	uint64_t	bits;
	_Atomic uint64_t *slot = slot_of(file, block, &bits);

	if ((atomic_load(slot) & ~TIME_MASK) == bits)
		return;
	atomic_store(slot, bits | (now_ns() / 1000 & TIME_MASK));
	atomic_fetch_add(&shared->notes, 1);
}

/* When a block is there that is read at `asked`; 0: it is there. Takes its note away. */
static uint64_t
there_at(uint64_t file, uint64_t block, uint64_t asked, uint64_t latency)
{
	uint64_t	bits;
	_Atomic uint64_t *slot = slot_of(file, block, &bits);
	uint64_t	noted = atomic_load(slot);
	uint64_t	now;
	uint64_t	age;

	atomic_fetch_add(&shared->reads, 1);
	if ((noted & ~TIME_MASK) != bits || !atomic_compare_exchange_strong(slot, &noted, 0))
		return asked + latency;
	atomic_fetch_add(&shared->found, 1);
	/* The clock is read after the note, which is therefore never of the future. */
	now = now_ns();
	age = ((now / 1000 - noted) & TIME_MASK) * 1000;
	/* Both times lack what is below a microsecond: rather too late than too early. */
	latency += 1000;
	return age < latency ? now + (latency - age) : 0;
}

/* Returns when what was read at `asked` is there. */
static void
await_blocks(int fd, off_t offset, ssize_t length, uint64_t asked)
{
	uint64_t	file = file_of(fd);
	uint64_t	latency = atomic_load(&shared->latency_ns);
	uint64_t	until = 0;
	struct timespec deadline;

	for (off_t block = offset / BLOCK; block <= (offset + length - 1) / BLOCK; block++)
	{
		uint64_t	there = there_at(file, (uint64_t) block, asked, latency);

		until = there > until ? there : until;
	}
	if (until == 0)
		return;
	atomic_fetch_add(&shared->delayed, 1);
	deadline.tv_sec = (time_t) (until / 1000000000);
	deadline.tv_nsec = (long) (until % 1000000000);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
		;
}

ssize_t
pread(int fd, void *to, size_t length, off_t offset)
{
	uint64_t	asked = is_slow(fd) ? now_ns() : 0;
	ssize_t		got = syscall(SYS_pread64, fd, to, length, offset);

	if (asked && got > 0)
		await_blocks(fd, offset, got, asked);
	return got;
}

ssize_t
preadv(int fd, const struct iovec *to, int count, off_t offset)
{
	uint64_t	asked = is_slow(fd) ? now_ns() : 0;
	ssize_t		got = syscall(SYS_preadv, fd, to, (long) count, offset, 0L);

	if (asked && got > 0)
		await_blocks(fd, offset, got, asked);
	return got;
}

int
posix_fadvise(int fd, off_t offset, off_t length, int advice)
{
	int			saved = errno;
	int			failed;

	if (advice == POSIX_FADV_WILLNEED && offset >= 0 && length > 0 && is_slow(fd))
	{
		uint64_t	first = (uint64_t) offset / BLOCK;
		uint64_t	blocks = ((uint64_t) offset % BLOCK + (uint64_t) length + BLOCK - 1) / BLOCK;

		blocks = blocks < MOST_ADVISED ? blocks : MOST_ADVISED;
		for (uint64_t block = first; block < first + blocks; block++)
			note(file_of(fd), block);
	}
	/* The call itself costs what it always does. */
	failed = syscall(SYS_fadvise64, fd, offset, length, (long) advice) == 0 ? 0 : errno;
	errno = saved;
	return failed;
}

int
close(int fd)
{
	if (fd >= 0 && fd < MOST_FILES)
		files[fd] = 0;
	return (int) syscall(SYS_close, fd);
}

/* The same where programs are compiled for offsets of 64 bits. */
ssize_t		pread64(int, void *, size_t, off64_t) __attribute__((alias("pread")));
ssize_t		preadv64(int, const struct iovec *, int, off64_t) __attribute__((alias("preadv")));
int			posix_fadvise64(int, off64_t, off64_t, int) __attribute__((alias("posix_fadvise")));
