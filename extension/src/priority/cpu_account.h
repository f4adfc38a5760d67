/*
 * cpu_account.h - what sessions and replay have had of the CPU.
 */
#ifndef LOCKSTEP_CPU_ACCOUNT_H
#define LOCKSTEP_CPU_ACCOUNT_H

/*
 * The last period of some 200 ms. Times are sums over processes, in us. Sessions are
 * those whose reads may be demoted; exempt ones count as programs of others.
 */
typedef struct LsCpuAccount
{
	int64		period_us;		/* 0: nothing is known yet */
	int			cores;			/* cores that this server may use */
	int64		light_cpu_us;	/* sessions with short statements */
	int64		near_cpu_us;	/* the part of sessions whose clients run on this machine */
	int64		light_wait_us;	/* wait of sessions with short statements for a core */
	int64		heavy_cpu_us;	/* sessions with long ones */
	int64		normal_cpu_us;	/* the part of those that are not demoted */
	int64		heavy_wait_us;	/* wait of sessions with long statements for a core */
	int64		replay_cpu_us;
	int64		replay_wait_us; /* wait of the process of replay that waited most; -1: not known */
	int64		idle_us;		/* time of the server's cores in which nobody had them; 0 if not known */
} LsCpuAccount;

extern bool ls_account_step(int64 now);
extern const LsCpuAccount *ls_cpu_account(void);
extern double ls_account_others(const LsCpuAccount *account);
extern double ls_account_foreign(const LsCpuAccount *account);

#endif							/* LOCKSTEP_CPU_ACCOUNT_H */
