//! What pgbench prints at the end of a run.

use super::scripts::Transaction;

/// A run as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Warehouses of the database.
    pub warehouses: u32,
    /// Transactions that ended as they should, rolled back New-Orders included.
    pub transactions: u64,
    /// Transactions a minute that ended as they should.
    pub per_minute: f64,
    /// New-Orders a minute, the hundredth that is rolled back included.
    pub new_orders_per_minute: f64,
    /// Transactions given up after [`super::MAX_TRIES`] tries.
    pub failed: u64,
    /// Transactions that were tried more than once.
    pub retried: u64,
    /// Tries beyond the first, of all transactions together.
    pub retries: u64,
    /// Mean delay of a transaction's start behind a fixed rate, in milliseconds.
    /// Latencies contain it.
    pub schedule_lag_ms: Option<f64>,
    /// Each kind of transaction.
    pub kinds: Vec<TransactionReport>,
}

/// One kind of transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct TransactionReport {
    /// The kind.
    pub transaction: Transaction,
    /// Transactions that ended as they should.
    pub transactions: u64,
    /// Transactions that were given up.
    pub failed: u64,
    /// Transactions a minute that ended as they should.
    pub per_minute: f64,
    /// Mean time; None if there was none.
    pub latency_ms: Option<f64>,
    /// Standard deviation.
    pub latency_stddev_ms: Option<f64>,
}

impl Report {
    /// Parses what pgbench 15 to 19 print. None if anything is missing.
    pub fn parse(text: &str, warehouses: u32) -> Option<Self> {
        let head = text.split("SQL script ").next()?;
        let kinds: Vec<_> = Transaction::ALL
            .into_iter()
            .enumerate()
            .map(|(index, transaction)| {
                let title = format!("\nSQL script {}: ", index + 1);
                let part = text.split(&title).nth(1)?;
                TransactionReport::parse(part.split("\nSQL script ").next()?, transaction)
            })
            .collect::<Option<_>>()?;
        Some(Self {
            warehouses,
            transactions: integer_after(head, "number of transactions actually processed: ")?,
            per_minute: 60.0 * after(head, "\ntps = ").unwrap_or(0.0),
            new_orders_per_minute: kinds
                .iter()
                .find(|kind: &&TransactionReport| kind.transaction == Transaction::NewOrder)?
                .per_minute,
            failed: integer_after(head, "number of failed transactions: ")?,
            retried: integer_after(head, "number of transactions retried: ")?,
            retries: integer_after(head, "total number of retries: ")?,
            schedule_lag_ms: after(head, "rate limit schedule lag: avg "),
            kinds,
        })
    }
}

impl TransactionReport {
    fn parse(part: &str, transaction: Transaction) -> Option<Self> {
        let line = |words: &str| part.lines().find(|line| line.contains(words));
        let begun = line(" transactions (")?;
        let total = integer_after(begun, " - ")?;
        // From 18 on the first number counts failed ones too, another line does not. There is
        // no such line if nothing was begun, and none about failures in some minor releases.
        let done = line("actually processed: ");
        let transactions = match done {
            Some(done) => integer_after(done, ": ")?,
            None => total,
        };
        let failed = integer_after(part, "number of failed transactions: ");
        let tps = match total {
            0 => 0.0,
            _ => after(done.unwrap_or(begun), "tps = ")?,
        };
        Some(Self {
            transaction,
            transactions,
            failed: failed.or_else(|| total.checked_sub(transactions))?,
            per_minute: 60.0 * tps,
            latency_ms: after(part, "latency average = "),
            latency_stddev_ms: after(part, "latency stddev = "),
        })
    }
}

/// The number behind the first `words`, if it is one.
fn after(text: &str, words: &str) -> Option<f64> {
    let rest = text.split_once(words)?.1;
    let digits = rest
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()?;
    digits.parse().ok()
}

/// Like [`after`], for a count.
fn integer_after(text: &str, words: &str) -> Option<u64> {
    let rest = text.split_once(words)?.1;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report as pgbench 15 prints it at a fixed rate, with times made up and the last script
    /// never run.
    fn sample() -> String {
        let mut text = "\
pgbench (15.20)
transaction type: multiple scripts
scaling factor: 1
query mode: simple
number of clients: 4
number of threads: 2
maximum number of tries: 10
duration: 10 s
number of transactions actually processed: 200
number of failed transactions: 1 (0.498%)
number of transactions retried: 3 (1.493%)
total number of retries: 12
latency average = 12.250 ms
latency stddev = 3.500 ms
rate limit schedule lag: avg 2.250 (max 9.125) ms
initial connection time = 7.000 ms
tps = 20.500000 (without initial connection time)
"
        .to_owned();
        for n in 1..=4 {
            text.push_str(&format!(
                "SQL script {n}: /proc/1/fd/{n}
 - weight: 45 (targets 45.0% of total)
 - {n}0 transactions (45.0% of total, tps = {n}.500000)
 - number of failed transactions: 0 (0.000%)
 - number of transactions retried: 0 (0.000%)
 - total number of retries: 0
 - latency average = {n}.125 ms
 - latency stddev = 0.500 ms
"
            ));
        }
        text + "SQL script 5: /proc/1/fd/5
 - weight: 4 (targets 4.0% of total)
 - 0 transactions (0.0% of total, tps = 0.000000)
 - number of failed transactions: 0 (-nan%)
 - number of transactions retried: 0 (-nan%)
 - total number of retries: 0
 - latency average = -nan ms
 - latency stddev = -nan ms
"
    }

    #[test]
    fn a_report_is_parsed() {
        let report = Report::parse(&sample(), 7).unwrap();
        assert_eq!(
            (
                report.transactions,
                report.failed,
                report.retried,
                report.retries
            ),
            (200, 1, 3, 12)
        );
        assert_eq!(report.warehouses, 7);
        assert_eq!(report.per_minute, 1230.0);
        assert_eq!(report.new_orders_per_minute, 90.0);
        assert_eq!(report.schedule_lag_ms, Some(2.25));
        let payment = report.kinds.get(1).unwrap();
        assert_eq!(payment.transaction, Transaction::Payment);
        assert_eq!((payment.transactions, payment.failed), (20, 0));
        assert_eq!(payment.latency_ms, Some(2.125));
        assert_eq!(payment.latency_stddev_ms, Some(0.5));
        assert_eq!(report.kinds.last().unwrap().latency_ms, None);
    }

    #[test]
    fn a_report_of_18_is_parsed() {
        let head = sample();
        let mut text = head.split("SQL script").next().unwrap().to_owned();
        for n in 1..=4 {
            text.push_str(&format!(
                "SQL script {n}: /proc/1/fd/{n}
 - weight: 45 (targets 45.0% of total)
 - {n}2 transactions (45.0% of total)
 - number of transactions actually processed: {n}0 (tps = {n}.500000)
 - number of transactions retried: 0 (0.000%)
 - total number of retries: 0
 - latency average = {n}.125 ms
 - latency stddev = 0.500 ms
"
            ));
        }
        text.push_str(
            "SQL script 5: /proc/1/fd/5
 - weight: 4 (targets 4.0% of total)
 - 0 transactions (0.0% of total)
",
        );
        let report = Report::parse(&text, 1).unwrap();
        let counted = |kind: &TransactionReport| (kind.transactions, kind.failed, kind.per_minute);
        let kinds: Vec<_> = report.kinds.iter().map(counted).collect();
        assert_eq!(kinds[1], (20, 2, 150.0));
        assert_eq!(kinds[4], (0, 0, 0.0));
    }

    #[test]
    fn without_a_rate_there_is_no_schedule_lag() {
        let text = sample().replace("rate limit schedule lag", "x");
        assert_eq!(Report::parse(&text, 1).unwrap().schedule_lag_ms, None);
    }

    #[test]
    fn an_incomplete_report_is_refused() {
        let whole = sample();
        assert!(Report::parse("", 1).is_none());
        for title in ["SQL script 1", "SQL script 5", "number of failed"] {
            let cut = whole.split(title).next().unwrap();
            assert!(Report::parse(cut, 1).is_none(), "{title}");
        }
    }
}
