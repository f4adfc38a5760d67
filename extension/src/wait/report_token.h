/*
 * report_token.h - lockstep.report_token: tokens that the server sends unasked.
 */
#ifndef LOCKSTEP_REPORT_TOKEN_H
#define LOCKSTEP_REPORT_TOKEN_H

extern void ls_report_token_register_callback(void);

#endif							/* LOCKSTEP_REPORT_TOKEN_H */
