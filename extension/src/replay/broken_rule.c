/*
 * broken_rule.c - the setting lockstep.broken_rule, in libraries built for tests only.
 */
#include "postgres.h"

#include "utils/guc.h"

#include "replay/broken_rule.h"

int			ls_broken_rule = LS_BREAK_NONE;

static const struct config_enum_entry broken_rule_names[] = {
	{"none", LS_BREAK_NONE, false},
	{"order", LS_BREAK_ORDER, false},
	{"heap_first", LS_BREAK_HEAP_FIRST, false},
	{"removal", LS_BREAK_REMOVAL, false},
	{"seen", LS_BREAK_SEEN, false},
	{"pin", LS_BREAK_PIN, false},
	{"map_clear", LS_BREAK_MAP_CLEAR, false},
	{"map_image", LS_BREAK_MAP_IMAGE, false},
	{"conflict", LS_BREAK_CONFLICT, false},
	{"extension", LS_BREAK_EXTENSION, false},
	{"size", LS_BREAK_SIZE, false},
	{"multixact", LS_BREAK_MULTIXACT, false},
	{"barrier", LS_BREAK_BARRIER, false},
	{"recovery_point", LS_BREAK_RECOVERY_POINT, false},
	{"backup_point", LS_BREAK_BACKUP_POINT, false},
	{"hot_point", LS_BREAK_HOT_POINT, false},
	{"files", LS_BREAK_FILES, false},
	{"generation", LS_BREAK_GENERATION, false},
	{"new_page", LS_BREAK_NEW_PAGE, false},
	{"target", LS_BREAK_TARGET, false},
	{"delay", LS_BREAK_DELAY, false},
	{"failure", LS_BREAK_FAILURE, false},
	{"leave", LS_BREAK_LEAVE, false},
	{"page_check", LS_BREAK_PAGE_CHECK, false},
	{"stretch_end", LS_BREAK_STRETCH_END, false},
	{"facts", LS_BREAK_FACTS, false},
	{NULL, 0, false}
};

void
ls_define_broken_rule(void)
{
	DefineCustomEnumVariable("lockstep.broken_rule",
							 "Rule that parallel replay does not keep (for tests: it destroys data).",
							 NULL,
							 &ls_broken_rule, LS_BREAK_NONE, broken_rule_names,
							 PGC_POSTMASTER,
							 GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL | GUC_SUPERUSER_ONLY,
							 NULL, NULL, NULL);
}
