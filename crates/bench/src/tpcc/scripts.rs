//! The five transactions (clause 2) as pgbench scripts.
//!
//! Input comes from pgbench, as it would from a terminal. Each step is one set-based
//! statement that reads and changes every row that the specification names. Every value
//! that a terminal would show is returned to the client.
//!
//! No deadlocks: Payment locks warehouse, district, customer in this order; New-Order
//! district, then stock in the order of its key; Delivery is one at a time in each
//! warehouse, as from the specification's queue, and takes no lock that those two take
//! before another but customers, which Payment locks last.

use std::ffi::OsString;

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;

use super::random::{NuRand, last_name};
use super::tools::{Script, Tools};
use super::{DISTRICTS, LINES};
use crate::Result;

/// Most tries of pgbench for a transaction that was a deadlock's victim or could not be
/// serialized. No second try is expected; a report shows them.
pub const MAX_TRIES: u32 = 10;

/// First key of the advisory locks that Delivery takes; the second is the warehouse.
const DELIVERY_LOCK: u32 = 0x7463;

/// The five transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// Places an order.
    NewOrder,
    /// Takes a customer's payment.
    Payment,
    /// Reads a customer's last order.
    OrderStatus,
    /// Delivers the oldest order of each district of a warehouse.
    Delivery,
    /// Counts recently sold items that run low.
    StockLevel,
}

impl Transaction {
    /// All, in the order of the scripts.
    pub const ALL: [Self; 5] = [
        Self::NewOrder,
        Self::Payment,
        Self::OrderStatus,
        Self::Delivery,
        Self::StockLevel,
    ];

    /// The transaction's name in files and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewOrder => "new_order",
            Self::Payment => "payment",
            Self::OrderStatus => "order_status",
            Self::Delivery => "delivery",
            Self::StockLevel => "stock_level",
        }
    }

    /// The transaction's share of all, in hundredths (clause 5.2.3).
    pub fn weight(self) -> u32 {
        match self {
            Self::NewOrder => 45,
            Self::Payment => 43,
            Self::OrderStatus | Self::Delivery | Self::StockLevel => 4,
        }
    }

    /// The pgbench script. It expects the variable `warehouses`.
    pub fn script(self) -> String {
        match self {
            Self::NewOrder => new_order(),
            Self::Payment => payment(),
            Self::OrderStatus => order_status(),
            Self::Delivery => delivery(),
            Self::StockLevel => stock_level(),
        }
    }
}

/// Adds the weighted scripts and what they expect to a pgbench command, which may run as
/// long as the scripts live.
pub(super) fn arguments(tools: &Tools, warehouses: u32) -> Result<(Vec<OsString>, Vec<Script>)> {
    let mut options = vec![
        format!("--define=warehouses={warehouses}").into(),
        format!("--max-tries={MAX_TRIES}").into(),
    ];
    let mut scripts = Vec::new();
    for transaction in Transaction::ALL {
        let script = tools.script(transaction.name(), &transaction.script())?;
        let weight = transaction.weight();
        options.push(format!("--file={}@{weight}", script.path.display()).into());
        scripts.push(script);
    }
    Ok((options, scripts))
}

/// What makes the lab's pgbench run the five transactions ([`Lab::start_pgbench`]) on data of
/// `warehouses` warehouses that [`super::load`] made.
pub fn options(lab: &Lab, warehouses: u32) -> Result<Vec<OsString>> {
    let tools = Tools::of_lab(lab, Side::Both);
    // The scripts are files of the run folder, and stay until the lab ends.
    let (options, _) = arguments(&tools, warehouses)?;
    Ok(options)
}

/// Another warehouse than `w_id`, each as likely. Needs two.
const OTHER_WAREHOUSE: &str = "(:w_id - 1 + random(1, :warehouses - 1)) % :warehouses + 1";

/// Home warehouse and district.
fn terminal() -> String {
    format!("\\set w_id random(1, :warehouses)\n\\set d_id random(1, {DISTRICTS})\n")
}

/// Chooses a customer by last name (60 of 100) or number.
fn choose_customer() -> String {
    format!(
        "\\set by_name case when random(1, 100) <= 60 then 1 else 0 end\n\
         \\set name {}\n\
         \\set c_id {}\n",
        NuRand::LAST_NAME.pgbench(),
        NuRand::CUSTOMER.pgbench()
    )
}

/// Finds the number of a customer who was chosen by name: of all with it, the one in
/// the middle by first name, rounded up (clause 2.5.2.2).
fn find_customer(warehouse: &str, district: &str) -> String {
    format!(
        "\\if :by_name = 1\n\
         SELECT c_id FROM (\n\
         \x20   SELECT c_id, row_number() OVER (ORDER BY c_first) AS place, count(*) OVER () AS all_named\n\
         \x20   FROM tpcc.customer\n\
         \x20   WHERE c_w_id = {warehouse} AND c_d_id = {district} AND c_last = {}) AS named\n\
         WHERE place = (all_named + 1) / 2 \\gset\n\
         \\endif\n",
        last_name(":name")
    )
}

fn new_order() -> String {
    let (fewest, most) = LINES;
    let item = NuRand::ITEM.pgbench();
    let mut script = terminal();
    script.push_str(&format!(
        "\\set c_id {}\n\\set lines random({fewest}, {most})\n\\set wrong random(1, 100)\n",
        NuRand::CUSTOMER.pgbench()
    ));
    for n in 1..=most {
        // One order of a hundred ends with an item that does not exist. Lines beyond the
        // order's are not used, and must not count as remote.
        script.push_str(&format!(
            "\\set i_{n} case when :wrong = 1 and :lines = {n} then 0 else {item} end\n\
             \\set w_{n} case when {n} <= :lines and :warehouses > 1 and random(1, 100) = 1 \
             then {OTHER_WAREHOUSE} else :w_id end\n\
             \\set q_{n} random(1, 10)\n"
        ));
    }
    let local: Vec<_> = (1..=most).map(|n| format!(":w_{n} = :w_id")).collect();
    script.push_str(&format!(
        "\\set all_local case when {} then 1 else 0 end\n",
        local.join(" and ")
    ));
    script.push_str(&new_order_statements(most));
    script
}

fn new_order_statements(most: u32) -> String {
    let values: Vec<_> = (1..=most)
        .map(|n| format!("({n}, :i_{n}, :w_{n}, :q_{n})"))
        .collect();
    let line = format!(
        "line (n, i, w, q) AS (\n    SELECT * FROM (VALUES {}) AS v (n, i, w, q) WHERE n <= :lines)",
        values.join(", ")
    );
    // Quantities lie in 10 to 100, 91 values, and each line takes its quantity and adds 91
    // when less than 10 would be left: so a sum modulo 91 gives what line after line would,
    // also for an item that is ordered twice.
    let info: Vec<_> = (1..=DISTRICTS)
        .map(|d| format!("WHEN {d} THEN s_dist_{d:02}"))
        .collect();
    format!(
        "BEGIN;
SELECT w_tax FROM tpcc.warehouse WHERE w_id = :w_id \\gset
UPDATE tpcc.district SET d_next_o_id = d_next_o_id + 1
WHERE d_w_id = :w_id AND d_id = :d_id RETURNING d_tax, d_next_o_id - 1 AS o_id \\gset
SELECT c_discount, c_last, c_credit FROM tpcc.customer
WHERE c_w_id = :w_id AND c_d_id = :d_id AND c_id = :c_id \\gset
INSERT INTO tpcc.orders VALUES (:o_id, :d_id, :w_id, :c_id, now(), NULL, :lines, :all_local);
INSERT INTO tpcc.new_order VALUES (:o_id, :d_id, :w_id);
WITH {line}
SELECT count(*) FILTER (WHERE i_id IS NULL) AS missing, sum(i_price), max(i_name), max(i_data)
FROM line LEFT JOIN tpcc.item ON i_id = i \\gset
\\if :missing > 0
ROLLBACK;
\\else
WITH {line}
SELECT s_w_id, s_i_id, s_quantity, s_data FROM tpcc.stock
WHERE (s_w_id, s_i_id) IN (SELECT w, i FROM line)
ORDER BY s_w_id, s_i_id FOR NO KEY UPDATE;
WITH {line},
taken AS (
    SELECT w, i, sum(q)::int AS q, count(*)::int AS lines FROM line GROUP BY w, i),
changed AS (
    UPDATE tpcc.stock SET
        s_quantity = 10 + ((s_quantity - 10 - q) % 91 + 91) % 91,
        s_ytd = s_ytd + q,
        s_order_cnt = s_order_cnt + lines,
        s_remote_cnt = s_remote_cnt + CASE WHEN w = :w_id THEN 0 ELSE lines END
    FROM taken WHERE s_w_id = w AND s_i_id = i
    RETURNING s_w_id, s_i_id, s_quantity, s_data, CASE :d_id {info} END AS info),
added AS (
    INSERT INTO tpcc.order_line
    SELECT :o_id, :d_id, :w_id, n, i, w, NULL, q, q * i_price, info
    FROM line JOIN tpcc.item ON i_id = i JOIN changed ON s_w_id = w AND s_i_id = i
    RETURNING ol_number, ol_i_id, ol_supply_w_id, ol_quantity, ol_amount)
SELECT added.*, i_name, i_price, s_quantity,
       CASE WHEN i_data LIKE '%ORIGINAL%' AND s_data LIKE '%ORIGINAL%' THEN 'B' ELSE 'G' END,
       sum(ol_amount) OVER () * (1 - :c_discount) * (1 + :w_tax + :d_tax) AS total
FROM added JOIN tpcc.item ON i_id = ol_i_id
JOIN changed ON s_w_id = ol_supply_w_id AND s_i_id = ol_i_id;
COMMIT;
\\endif
",
        info = info.join(" ")
    )
}

fn payment() -> String {
    format!(
        "{}\\set away case when :warehouses > 1 and random(1, 100) <= 15 then 1 else 0 end
\\set c_w_id case when :away = 1 then {OTHER_WAREHOUSE} else :w_id end
\\set c_d_id case when :away = 1 then random(1, {DISTRICTS}) else :d_id end
{}\\set cents random(100, 500000)
BEGIN;
UPDATE tpcc.warehouse SET w_ytd = w_ytd + :cents * 0.01 WHERE w_id = :w_id
RETURNING w_name, w_street_1, w_street_2, w_city, w_state, w_zip;
UPDATE tpcc.district SET d_ytd = d_ytd + :cents * 0.01 WHERE d_w_id = :w_id AND d_id = :d_id
RETURNING d_name, d_street_1, d_street_2, d_city, d_state, d_zip;
{}UPDATE tpcc.customer SET
    c_balance = c_balance - :cents * 0.01,
    c_ytd_payment = c_ytd_payment + :cents * 0.01,
    c_payment_cnt = c_payment_cnt + 1,
    c_data = CASE c_credit WHEN 'BC'
        THEN left(concat_ws(' ', c_id, c_d_id, c_w_id, :d_id, :w_id, :cents * 0.01, c_data), 500)
        ELSE c_data END
WHERE c_w_id = :c_w_id AND c_d_id = :c_d_id AND c_id = :c_id
RETURNING c_id, c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone,
    c_since, c_credit, c_credit_lim, c_discount, c_balance,
    CASE c_credit WHEN 'BC' THEN left(c_data, 200) END;
INSERT INTO tpcc.history
SELECT :c_id, :c_d_id, :c_w_id, :d_id, :w_id, now(), :cents * 0.01, w_name || '    ' || d_name
FROM tpcc.warehouse, tpcc.district
WHERE w_id = :w_id AND d_w_id = :w_id AND d_id = :d_id;
COMMIT;
",
        terminal(),
        choose_customer(),
        find_customer(":c_w_id", ":c_d_id"),
    )
}

fn order_status() -> String {
    format!(
        "{}{}BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
{}SELECT c_first, c_middle, c_last, c_balance FROM tpcc.customer
WHERE c_w_id = :w_id AND c_d_id = :d_id AND c_id = :c_id;
SELECT o_id, o_entry_d, o_carrier_id FROM tpcc.orders
WHERE o_w_id = :w_id AND o_d_id = :d_id AND o_c_id = :c_id
ORDER BY o_id DESC LIMIT 1 \\gset
SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM tpcc.order_line
WHERE ol_w_id = :w_id AND ol_d_id = :d_id AND ol_o_id = :o_id;
COMMIT;
",
        terminal(),
        choose_customer(),
        find_customer(":w_id", ":d_id"),
    )
}

fn delivery() -> String {
    // The lock is a statement of its own: the next one's snapshot then shows all that
    // the delivery before did.
    format!(
        "\\set w_id random(1, :warehouses)
\\set carrier random(1, 10)
BEGIN;
SELECT pg_advisory_xact_lock({DELIVERY_LOCK}, :w_id);
WITH oldest AS MATERIALIZED (
    SELECT d, (SELECT no_o_id FROM tpcc.new_order WHERE no_w_id = :w_id AND no_d_id = d
               ORDER BY no_o_id LIMIT 1) AS o
    FROM generate_series(1, {DISTRICTS}) AS d),
gone AS (
    DELETE FROM tpcc.new_order USING oldest
    WHERE no_w_id = :w_id AND no_d_id = d AND no_o_id = o
    RETURNING no_d_id AS d, no_o_id AS o),
delivered AS (
    UPDATE tpcc.orders SET o_carrier_id = :carrier FROM gone
    WHERE o_w_id = :w_id AND o_d_id = d AND o_id = o
    RETURNING o_d_id AS d, o_id AS o, o_c_id AS c),
lines AS (
    UPDATE tpcc.order_line SET ol_delivery_d = now() FROM gone
    WHERE ol_w_id = :w_id AND ol_d_id = d AND ol_o_id = o
    RETURNING ol_d_id AS d, ol_amount AS amount),
due AS (
    SELECT d, o, c, total
    FROM delivered JOIN (SELECT d, sum(amount) AS total FROM lines GROUP BY d) AS sums USING (d))
UPDATE tpcc.customer SET
    c_balance = c_balance + total,
    c_delivery_cnt = c_delivery_cnt + 1
FROM due WHERE c_w_id = :w_id AND c_d_id = d AND c_id = c
RETURNING d, o;
COMMIT;
"
    )
}

fn stock_level() -> String {
    format!(
        "{}\\set threshold random(10, 20)
BEGIN;
SELECT d_next_o_id FROM tpcc.district WHERE d_w_id = :w_id AND d_id = :d_id \\gset
SELECT count(DISTINCT s_i_id) FROM tpcc.order_line
JOIN tpcc.stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id
WHERE ol_w_id = :w_id AND ol_d_id = :d_id
  AND ol_o_id >= :d_next_o_id - 20 AND ol_o_id < :d_next_o_id
  AND s_quantity < :threshold;
COMMIT;
",
        terminal()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_lab::assert_has;

    #[test]
    fn weights_are_hundredths() {
        let sum: u32 = Transaction::ALL.iter().map(|t| t.weight()).sum();
        assert_eq!(sum, 100);
    }

    #[test]
    fn variables_are_set_before_they_are_used() {
        for transaction in Transaction::ALL {
            let script = transaction.script();
            let mut known = vec!["warehouses".to_owned()];
            for line in script.lines() {
                for used in variables(line) {
                    assert!(known.contains(&used), "{transaction:?} uses {used}: {line}");
                }
                if let Some(rest) = line.strip_prefix("\\set ") {
                    known.push(rest.split(' ').next().unwrap().to_owned());
                }
                if line.ends_with("\\gset") {
                    known.extend(
                        ["c_id", "o_id", "d_tax", "w_tax", "c_discount", "missing"]
                            .into_iter()
                            .chain(["d_next_o_id"])
                            .filter(|name| script.contains(name))
                            .map(str::to_owned),
                    );
                }
            }
        }
    }

    /// Names after a single colon.
    fn variables(line: &str) -> Vec<String> {
        let mut names = Vec::new();
        for part in line.replace("::", " ").split(':').skip(1) {
            names.push(
                part.chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect(),
            );
        }
        names
    }

    #[test]
    fn blocks_are_closed() {
        for transaction in Transaction::ALL {
            let script = transaction.script();
            let count = |word: &str| script.matches(word).count();
            assert_eq!(count("\\if"), count("\\endif"), "{transaction:?}");
            assert_eq!(count("BEGIN"), count("COMMIT;"), "{transaction:?}");
            assert_eq!(count("BEGIN"), 1);
        }
    }

    #[test]
    fn shares_of_the_specification_are_in_the_scripts() {
        let payment = Transaction::Payment.script();
        assert!(payment.contains("random(1, 100) <= 60"));
        assert!(payment.contains("random(1, 100) <= 15"));
        assert_has!(Transaction::OrderStatus.script(), "random(1, 100) <= 60");
        let order = Transaction::NewOrder.script();
        assert!(order.contains("\\set wrong random(1, 100)") && order.contains(":wrong = 1"));
        assert_eq!(order.matches("random(1, 100) = 1 ").count(), 15);
        assert!(order.contains("\\set lines random(5, 15)"));
    }

    #[test]
    fn a_stock_quantity_modulo_91_is_what_line_after_line_gives() {
        for start in 10..=100_i32 {
            for (a, b) in (1..=10).flat_map(|a| (1..=10).map(move |b| (a, b))) {
                let step = |s: i32, q: i32| if s - q >= 10 { s - q } else { s - q + 91 };
                let at_once = 10 + ((start - 10 - a - b) % 91 + 91) % 91;
                assert_eq!(step(step(start, a), b), at_once, "{start} {a} {b}");
            }
        }
    }
}
