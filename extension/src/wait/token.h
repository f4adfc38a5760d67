/*
 * token.h - what a session passes from the primary to a standby to read its own
 * writes: the end of a commit in the WAL, and the timeline of that WAL.
 */
#ifndef LOCKSTEP_TOKEN_H
#define LOCKSTEP_TOKEN_H

#include "access/xlogdefs.h"

typedef struct LsToken
{
	TimeLineID	tli;			/* 0: a position without a timeline */
	XLogRecPtr	lsn;
} LsToken;

/* Ten decimal digits, two halves of an LSN, two slashes and the end. */
#define LS_TOKEN_TEXT_SIZE 32
#define LS_TOKEN_DESCRIPTION_SIZE 64

extern bool ls_parse_token(const char *text, LsToken *token);
extern void ls_print_token(const LsToken *token, char text[LS_TOKEN_TEXT_SIZE]);
extern void ls_describe_token(const LsToken *token, char text[LS_TOKEN_DESCRIPTION_SIZE]);

#endif							/* LOCKSTEP_TOKEN_H */
