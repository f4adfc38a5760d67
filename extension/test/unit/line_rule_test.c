/*
 * line_rule_test.c - where a session waits at the gate, and who is let in next.
 */
#include "postgres.h"

#include "gate/line_rule.h"
#include "tap.h"

#define TURN_US 20000

typedef struct LineRow
{
	const char *name;
	LsLineInput in;
	LsLine		line;
} LineRow;

#define LOOK_UP 8.3				/* what the planner says of a query by primary key */

static const LineRow line_rows[] = {
	{"no turn so far", {0, TURN_US, LOOK_UP, false, true}, LS_LINE_LIGHT},
	{"a look-up", {100, TURN_US, LOOK_UP, false, true}, LS_LINE_LIGHT},
	{"a quarter of a turn", {TURN_US / 4, TURN_US, LOOK_UP, false, true}, LS_LINE_LIGHT},
	{"more than that", {TURN_US / 4 + 1, TURN_US, LOOK_UP, false, true}, LS_LINE_HEAVY},
	{"a report", {60000000, TURN_US, 1e6, false, true}, LS_LINE_HEAVY},
	{"without turns a new session", {0, 0, LOOK_UP, false, true}, LS_LINE_LIGHT},
	{"without turns any other", {1, 0, LOOK_UP, false, true}, LS_LINE_HEAVY},
	{"nothing of the user is inside", {0, TURN_US, LOOK_UP, false, false}, LS_LINE_EXPRESS},
	{"whatever it did before", {60000000, TURN_US, LOOK_UP, false, false}, LS_LINE_EXPRESS},
	{"with a first report", {0, TURN_US, 1e6, false, false}, LS_LINE_LIGHT},
	{"with another one", {60000000, TURN_US, 1e6, false, false}, LS_LINE_HEAVY},
	{"with what seemed short and was not", {60000000, TURN_US, 0.01, true, false}, LS_LINE_HEAVY},
};

typedef struct ExpressRow
{
	const char *name;
	uint32		express;
	uint32		running;
	uint32		capacity;
	uint32		limit;
	bool		open;
} ExpressRow;

static const ExpressRow express_rows[] = {
	{"one beside a limit of one", 0, 1, 1, 1, true},
	{"and no second", 1, 1, 1, 1, false},
	{"nor one when a query turned out to be long", 0, 2, 1, 1, false},
	{"which counts less beside many", 0, 9, 8, 8, true},
	{"a quarter of the limit", 1, 8, 8, 8, true},
	{"and no more", 2, 8, 8, 8, false},
	{"as many long ones as the limit", 0, 16, 8, 8, false},
	{"with places for exceptions", 0, 10, 10, 8, true},
	{"while the limit falls", 0, 8, 2, 2, false},
	{"without a limit", 0, 0, 1000, 0, true},
};

typedef struct ServeRow
{
	const char *name;
	uint32		lights;
	uint32		heavies;
	uint32		lights_since;
	LsLine		line;
} ServeRow;

static const ServeRow serve_rows[] = {
	{"nobody waits", 0, 0, 0, LS_LINE_LIGHT},
	{"only light ones", 3, 0, 1000, LS_LINE_LIGHT},
	{"only heavy ones", 0, 3, 0, LS_LINE_HEAVY},
	{"one light among many heavy", 1, 1000, 0, LS_LINE_LIGHT},
	{"light ones go first", 1, 1000, LS_LIGHTS_FIRST - 1, LS_LINE_LIGHT},
	{"but not for ever", 1, 1000, LS_LIGHTS_FIRST, LS_LINE_HEAVY},
	{"one heavy among many light waits for all of them", 127, 1, 126, LS_LINE_LIGHT},
	{"as it would in one line", 127, 1, 127, LS_LINE_HEAVY},
	{"ten for each", 100, 10, 9, LS_LINE_LIGHT},
	{"and then one", 100, 10, 10, LS_LINE_HEAVY},
};

/* Turns of each kind in 1000, when everybody lines up again at once. */
static int
heavy_turns(uint32 lights, uint32 heavies)
{
	uint32		lights_since = 0;
	int			turns = 0;

	for (int i = 0; i < 1000; i++)
	{
		if (ls_line_to_serve(lights, heavies, lights_since) == LS_LINE_LIGHT)
			lights_since++;
		else
		{
			lights_since = 0;
			turns++;
		}
	}
	return turns;
}

/*
 * Light sessions until a heavy one comes, when new light ones come faster than they are
 * served, until all of them wait.
 */
static int
lights_before_heavy(uint32 sessions, uint32 arrive)
{
	uint32		lights = 1;
	int			served = 0;

	while (ls_line_to_serve(lights, 1, served) == LS_LINE_LIGHT)
	{
		served++;
		lights = Min(lights - 1 + arrive, sessions);
		if (served > sessions)
			break;
	}
	return served;
}

/* Most heavy turns in a row, where light ones wait, come and give up in any number. */
static int
heavies_in_a_row(void)
{
	uint32		lights_since = 0;
	int			row = 0;
	int			most = 0;

	for (int i = 0; i < 1000; i++)
	{
		if (ls_line_to_serve(1 + i * 7 % 100, 1 + i * 13 % 100, lights_since) == LS_LINE_LIGHT)
		{
			lights_since++;
			row = 0;
			continue;
		}
		lights_since = 0;
		row++;
		most = Max(most, row);
	}
	return most;
}

int
main(void)
{
	for (int i = 0; i < lengthof(line_rows); i++)
		ok(ls_line_of(&line_rows[i].in) == line_rows[i].line, "%s", line_rows[i].name);
	for (int i = 0; i < lengthof(express_rows); i++)
	{
		const ExpressRow *row = &express_rows[i];

		ok(ls_express_is_open(row->express, row->running, row->capacity, row->limit) == row->open,
		   "express: %s", row->name);
	}
	for (int i = 0; i < lengthof(serve_rows); i++)
		ok(ls_line_to_serve(serve_rows[i].lights, serve_rows[i].heavies,
							serve_rows[i].lights_since) == serve_rows[i].line,
		   "%s", serve_rows[i].name);
	ok(heavy_turns(1, 20) == 200, "heavy ones have a fifth of the turns at least");
	ok(heavy_turns(99, 1) == 10, "and no more than their number gives them");
	ok(lights_before_heavy(1000, 2) == 1000, "a heavy one comes, however many light ones come");
	ok(lights_before_heavy(1000, 1) == LS_LIGHTS_FIRST, "soon, if they do not grow in number");
	ok(heavies_in_a_row() == 1, "light ones wait for one heavy turn at a time");
	return done_testing();
}
