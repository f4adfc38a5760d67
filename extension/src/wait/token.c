/*
 * token.c - tokens as text.
 *
 * A token is TIMELINE/LSN, with the timeline in decimal, like 1/0/16B3748. The LSN is
 * where a record ends. What is read may also be a WAL position alone.
 *
 * A client that cuts tokens off would wait for another position, or for none. So what can be
 * known for such a beginning is refused: a token whose LSN cannot be a record's end, which is
 * seven of eight cut at a random digit, and a position that is a timeline and half an LSN.
 */
#include "postgres.h"

#include <ctype.h>

#include "access/xlog_internal.h"

#include "wait/token.h"

/* Eight hexadecimal digits fit 32 bits. */
#define LSN_HALF_DIGITS 8
/* Decimal digits of the highest timeline. */
#define TIMELINE_DIGITS 10

/* Bytes at the beginning of a segment of WAL in which no record ends: the header of its first page. */
#define NO_RECORD_ENDS 40

static bool token_ends_a_record(XLogRecPtr lsn);
static bool token_may_be_cut(const char *text, XLogRecPtr lsn);
static bool token_parse_lsn(const char *at, XLogRecPtr *lsn);
static bool token_parse_half(const char **at, uint32 *half);
static bool token_parse_timeline(const char **at, TimeLineID *tli);

/* Reads a token, or a position alone. False leaves *token undefined. */
bool
ls_parse_token(const char *text, LsToken *token)
{
	const char *slash = strchr(text, '/');

	if (slash == NULL || strchr(slash + 1, '/') == NULL)
	{
		token->tli = 0;
		return token_parse_lsn(text, &token->lsn) && !token_may_be_cut(text, token->lsn);
	}
	return token_parse_timeline(&text, &token->tli) && text == slash &&
		token_parse_lsn(slash + 1, &token->lsn) && token_ends_a_record(token->lsn);
}

/* The text of a token that has a timeline. */
void
ls_print_token(const LsToken *token, char text[LS_TOKEN_TEXT_SIZE])
{
	snprintf(text, LS_TOKEN_TEXT_SIZE, "%u/%X/%X", token->tli, LSN_FORMAT_ARGS(token->lsn));
}

/* The token in words, for messages. */
void
ls_describe_token(const LsToken *token, char text[LS_TOKEN_DESCRIPTION_SIZE])
{
	if (token->tli == 0)
		snprintf(text, LS_TOKEN_DESCRIPTION_SIZE, "WAL position %X/%X",
				 LSN_FORMAT_ARGS(token->lsn));
	else
		snprintf(text, LS_TOKEN_DESCRIPTION_SIZE, "WAL position %X/%X of timeline %u",
				 LSN_FORMAT_ARGS(token->lsn), token->tli);
}

/*
 * Can a record end there? Records are aligned, do not end in the header of a page, except before its
 * first byte, and the first segment of WAL is never written.
 */
static bool
token_ends_a_record(XLogRecPtr lsn)
{
	uint64		in_page = lsn % XLOG_BLCKSZ;

	return lsn == MAXALIGN64(lsn) && lsn >= WalSegMinSize &&
		(in_page == 0 || in_page >= SizeOfXLogShortPHD);
}

/*
 * Is what was read as a position a timeline and the first half of a position? Where that half
 * is a larger one it cannot be told from the end of a record.
 */
static bool
token_may_be_cut(const char *text, XLogRecPtr lsn)
{
	return text[0] >= '1' && text[0] <= '9' && strspn(text, "0123456789") == strcspn(text, "/") &&
		(uint32) lsn < NO_RECORD_ENDS;
}

static bool
token_parse_lsn(const char *at, XLogRecPtr *lsn)
{
	uint32		high;
	uint32		low;

	if (!token_parse_half(&at, &high) || *at++ != '/' ||
		!token_parse_half(&at, &low) || *at != '\0')
		return false;
	*lsn = ((uint64) high << 32) | low;
	return true;
}

static bool
token_parse_half(const char **at, uint32 *half)
{
	int			digits = 0;

	*half = 0;
	while (isxdigit((unsigned char) **at) && digits < LSN_HALF_DIGITS)
	{
		char		c = pg_tolower((unsigned char) **at);

		*half = *half * 16 + (c >= 'a' ? c - 'a' + 10 : c - '0');
		(*at)++;
		digits++;
	}
	return digits > 0;
}

/* Reads a timeline in decimal; there is no timeline 0. */
static bool
token_parse_timeline(const char **at, TimeLineID *tli)
{
	uint64		value = 0;

	for (int digits = 0; isdigit((unsigned char) **at) && digits < TIMELINE_DIGITS; digits++)
	{
		value = value * 10 + (**at - '0');
		(*at)++;
	}
	*tli = (TimeLineID) value;
	return value > 0 && value <= PG_UINT32_MAX;
}
