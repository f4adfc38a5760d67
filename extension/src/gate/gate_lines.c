/*
 * gate_lines.c - the lines of sessions that wait at the gate.
 *
 * Each line is a queue (gate_queue.c). line_rule.c says in which line a session waits
 * and from which line the next one comes. Who waits in the express line while its user gets a place
 * is moved to the light line.
 *
 * A session has at most one entry in all queues together. An entry that it left
 * there as it gave up serves when it waits again, also where it is in the other
 * line: then the session waits once as what it was before.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "compat.h"
#include "gate/gate.h"
#include "gate/gate_lines.h"
#include "gate/gate_queue.h"

static Size gate_lines_queue_size(void);
static int gate_lines_take_entry(LsLine *line);
static bool gate_lines_grant(int procno, LsGateState granted);
static void gate_lines_count_grant(LsLine line);

/* Shared memory for all. */
Size
ls_gate_queues_size(void)
{
	return LS_LINES * gate_lines_queue_size();
}

void
ls_init_lines(char *queues)
{
	pg_atomic_init_u32(&ls_gate->lights_since, 0);
	for (int i = 0; i < LS_LINES; i++)
	{
		ls_gate->queues[i] = (LsQueue *) (queues + i * gate_lines_queue_size());
		ls_queue_init(ls_gate->queues[i], ls_nsessions);
	}
}

/*
 * Puts the session into a line. An entry left from an earlier wait serves again,
 * so each queue has room for every session. Should it have none all the same,
 * false: the session does not wait. The caller drains the lines next.
 */
bool
ls_join_line(LsSession *s, LsLine line)
{
	pg_atomic_exchange_u32(&s->gate, LS_GATE_QUEUED);
	pg_atomic_fetch_add_u32(&ls_gate->waiting, 1);
	if (pg_atomic_exchange_u32(&s->in_ring, 1) != 0 ||
		ls_queue_push(ls_gate->queues[line], LS_MY_PROCNO))
		return true;
	pg_atomic_write_u32(&s->in_ring, 0);
	return ls_leave_line(s);
}

/* Stops waiting; true if the session had been granted a place by then. */
bool
ls_leave_line(LsSession *s)
{
	uint32		queued = LS_GATE_QUEUED;

	if (!pg_atomic_compare_exchange_u32(&s->gate, &queued, LS_GATE_OUTSIDE))
		return true;
	pg_atomic_fetch_sub_u32(&ls_gate->waiting, 1);
	return false;
}

/*
 * Grants the place that the caller holds to the next waiting session. LS_NO_PROCNO
 * if there is none. Entries of sessions that gave up are dropped.
 */
int
ls_grant_next(void)
{
	LsLine		line;
	int			procno;

	while ((procno = gate_lines_take_entry(&line)) != LS_NO_PROCNO)
	{
		if (gate_lines_grant(procno, LS_GATE_GRANTED))
		{
			gate_lines_count_grant(line);
			return procno;
		}
	}
	return LS_NO_PROCNO;
}

/* Likewise an express place. */
int
ls_grant_next_express(void)
{
	int			procno;

	while ((procno = ls_queue_pop(ls_gate->queues[LS_LINE_EXPRESS])) != LS_NO_PROCNO)
	{
		if (ls_user_is_inside(procno) && ls_queue_push(ls_gate->queues[LS_LINE_LIGHT], procno))
			continue;
		if (gate_lines_grant(procno, LS_GATE_EXPRESS_GRANTED))
			return procno;
	}
	return LS_NO_PROCNO;
}

/* Has a session of this one's user a place that is not of the express line, or executes without one? */
bool
ls_user_is_inside(int procno)
{
	Oid			user = GetPGProcByNumber(procno)->roleId;

	for (int i = 0; i < ls_nsessions; i++)
	{
		switch ((LsGateState) pg_atomic_read_u32(&ls_sessions[i].gate))
		{
			case LS_GATE_GRANTED:
			case LS_GATE_INSIDE:
			case LS_GATE_UNASKED:
			case LS_GATE_KEPT:
				if (GetPGProcByNumber(i)->roleId == user)
					return true;
				break;
			case LS_GATE_OUTSIDE:
			case LS_GATE_QUEUED:
			case LS_GATE_EXPRESS_GRANTED:
			case LS_GATE_EXPRESS:
				break;
		}
	}
	return false;
}

/* True if no line has an entry at this moment. */
bool
ls_lines_are_empty(void)
{
	return ls_queue_is_empty(ls_gate->queues[LS_LINE_LIGHT]) &&
		ls_queue_is_empty(ls_gate->queues[LS_LINE_HEAVY]) && ls_express_line_is_empty();
}

bool
ls_express_line_is_empty(void)
{
	return ls_queue_is_empty(ls_gate->queues[LS_LINE_EXPRESS]);
}

static Size
gate_lines_queue_size(void)
{
	return MAXALIGN(ls_queue_size(MaxBackends));
}

/*
 * Takes an entry out of the line whose turn it is, or out of another if that one
 * turns out to be empty. LS_NO_PROCNO: all are.
 */
static int
gate_lines_take_entry(LsLine *line)
{
	int			procno;

	*line = ls_line_to_serve(ls_queue_length(ls_gate->queues[LS_LINE_LIGHT]),
							 ls_queue_length(ls_gate->queues[LS_LINE_HEAVY]),
							 pg_atomic_read_u32(&ls_gate->lights_since));
	procno = ls_queue_pop(ls_gate->queues[*line]);
	if (procno != LS_NO_PROCNO)
		return procno;
	*line = *line == LS_LINE_LIGHT ? LS_LINE_HEAVY : LS_LINE_LIGHT;
	procno = ls_queue_pop(ls_gate->queues[*line]);
	if (procno != LS_NO_PROCNO)
		return procno;
	*line = LS_LINE_EXPRESS;
	return ls_queue_pop(ls_gate->queues[*line]);
}

/* Grants a place to the session of an entry; false if the session does not wait any more. */
static bool
gate_lines_grant(int procno, LsGateState granted)
{
	LsSession  *s = &ls_sessions[procno];
	uint32		queued = LS_GATE_QUEUED;

	/*
	 * Before the grant, or a session that queues again here is lost. Its
	 * clock is not touched: the entry may be an old one of a session that
	 * is inside by now. One that is granted sets it as it goes in.
	 */
	pg_atomic_exchange_u32(&s->in_ring, 0);
	if (!pg_atomic_compare_exchange_u32(&s->gate, &queued, granted))
		return false;
	pg_atomic_fetch_sub_u32(&ls_gate->waiting, 1);
	return true;
}

/* Two processes may count at once; then one light session more or less goes first. */
static void
gate_lines_count_grant(LsLine line)
{
	if (line == LS_LINE_HEAVY)
		pg_atomic_write_u32(&ls_gate->lights_since, 0);
	else if (!ls_queue_is_empty(ls_gate->queues[LS_LINE_HEAVY]))
		pg_atomic_fetch_add_u32(&ls_gate->lights_since, 1);
}
