//! The initial data (clause 4.3.3), made by the server itself: one set-based statement
//! for each table and warehouse.
//!
//! Random texts come from subqueries that the planner cannot pull up, as they are
//! volatile: each row evaluates them once, however often they are used.

use super::random::{NuRand, between, last_name, letters};
use super::{CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER, ITEMS, LINES};

/// Settings of a loading session: the same data for the same task, and no waiting for
/// each commit.
pub(super) fn session(task: u32) -> String {
    // setseed takes -1 to 1; a 32-bit mantissa keeps neighbours apart.
    let seed = f64::from(task) / f64::from(u32::MAX);
    format!(
        "SET synchronous_commit = off;
         SET max_parallel_workers_per_gather = 0;
         SET jit = off;
         SELECT setseed({seed:.12});\n"
    )
}

/// Data with the word ORIGINAL somewhere in one row of ten.
fn sometimes_original(column: &str) -> String {
    const WORD: &str = "ORIGINAL";
    format!(
        "CASE WHEN random() < 0.1 THEN overlay({column} PLACING '{WORD}' \
         FROM 1 + floor(random() * (length({column}) - {}))::int) ELSE {column} END",
        WORD.len() - 1
    )
}

/// A zip code: four random digits and five fixed ones.
fn zip() -> String {
    format!("lpad({}::text, 4, '0') || '11111'", between(0, 9999))
}

/// An amount of `low..=high` hundredths.
fn hundredths(low: u32, high: u32) -> String {
    format!("{}::numeric / 100", between(low, high))
}

/// Name, two streets, city and state, cut from the text `r` from its start on: columns
/// of warehouse and district.
fn address() -> String {
    format!(
        "left(r, {}), substr(r, 11, {street}), substr(r, 31, {street}), substr(r, 51, {street}), \
         substr(r, 71, 2), {}",
        between(6, 10),
        zip(),
        street = between(10, 20)
    )
}

pub(super) fn items() -> String {
    format!(
        "INSERT INTO tpcc.item
         SELECT i, {}, left(r, {}), {}, {}
         FROM (SELECT i, r, substr(r, 25, {}) AS data
               FROM (SELECT i, {} AS r FROM generate_series(1, {ITEMS}) AS i) AS texts
               OFFSET 0) AS rows;\n",
        between(1, 10_000),
        between(14, 24),
        hundredths(100, 10_000),
        sometimes_original("data"),
        between(26, 50),
        letters(74),
    )
}

/// Warehouses 1 to `warehouses` and their districts.
pub(super) fn warehouses(warehouses: u32) -> String {
    let tax = between(0, 2000);
    format!(
        "INSERT INTO tpcc.warehouse
         SELECT w, {address}, {tax}::numeric / 10000, 300000
         FROM (SELECT w, {text} AS r FROM generate_series(1, {warehouses}) AS w) AS texts;
         INSERT INTO tpcc.district
         SELECT d, w, {address}, {tax}::numeric / 10000, 30000, {next}
         FROM (SELECT d, w, {text} AS r
               FROM generate_series(1, {warehouses}) AS w, generate_series(1, {DISTRICTS}) AS d)
              AS texts;\n",
        address = address(),
        text = letters(72),
        next = CUSTOMERS + 1,
    )
}

/// Stock of warehouse `w`.
pub(super) fn stock(w: u32) -> String {
    let infos: Vec<_> = (0..DISTRICTS)
        .map(|district| format!("substr(r, {}, 24)", 1 + 24 * district))
        .collect();
    format!(
        "INSERT INTO tpcc.stock
         SELECT i, {w}, {}, {}, 0, 0, 0, {}
         FROM (SELECT i, r, substr(r, 241, {}) AS data
               FROM (SELECT i, {} AS r FROM generate_series(1, {ITEMS}) AS i) AS texts
               OFFSET 0) AS rows;\n",
        between(10, 100),
        infos.join(", "),
        sometimes_original("data"),
        between(26, 50),
        letters(290),
    )
}

/// Customers of warehouse `w`, and one payment of each.
pub(super) fn customers(w: u32) -> String {
    let name = format!(
        "CASE WHEN c <= 1000 THEN c - 1 ELSE {} END",
        NuRand::LAST_NAME_LOADED.sql()
    );
    format!(
        "INSERT INTO tpcc.customer
         SELECT c, d, {w}, left(r, {first}), 'OE', {last}, substr(r, 17, {street}),
                substr(r, 37, {street}), substr(r, 57, {street}), substr(r, 77, 2), {zip},
                lpad(floor(random() * 1e8)::text, 8, '0') || lpad(floor(random() * 1e8)::text, 8, '0'),
                now(), CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END, 50000,
                {discount}::numeric / 10000, -10, 10, 1, 0, substr(r, 79, {data})
         FROM (SELECT c, d, {name} AS number, {text} AS r
               FROM generate_series(1, {DISTRICTS}) AS d, generate_series(1, {CUSTOMERS}) AS c)
              AS texts;
         INSERT INTO tpcc.history
         SELECT c, d, {w}, d, {w}, now(), 10, left(r, {payment})
         FROM (SELECT c, d, {short} AS r
               FROM generate_series(1, {DISTRICTS}) AS d, generate_series(1, {CUSTOMERS}) AS c)
              AS texts;\n",
        first = between(8, 16),
        last = last_name("number"),
        street = between(10, 20),
        zip = zip(),
        discount = between(0, 5000),
        data = between(300, 500),
        text = letters(578),
        payment = between(12, 24),
        short = letters(24),
    )
}

/// Orders of warehouse `w`, one for each customer in random order, with their lines.
pub(super) fn orders(w: u32) -> String {
    let delivered = format!("o_id < {FIRST_NEW_ORDER}");
    format!(
        "WITH placed AS (
             INSERT INTO tpcc.orders
             SELECT o_id, d, {w}, c, now(), CASE WHEN {delivered} THEN {carrier} END, {lines}, 1
             FROM (SELECT row_number() OVER (PARTITION BY d ORDER BY random()) AS o_id, d, c
                   FROM generate_series(1, {DISTRICTS}) AS d, generate_series(1, {CUSTOMERS}) AS c)
                  AS shuffled
             RETURNING o_id, o_d_id, o_entry_d, o_ol_cnt)
         INSERT INTO tpcc.order_line
         SELECT o_id, o_d_id, {w}, number, {item}, {w},
                CASE WHEN {delivered} THEN o_entry_d END, 5,
                CASE WHEN {delivered} THEN 0 ELSE {amount} END, left({info}, 24)
         FROM placed, generate_series(1, o_ol_cnt) AS number;
         INSERT INTO tpcc.new_order
         SELECT o, d, {w}
         FROM generate_series(1, {DISTRICTS}) AS d,
              generate_series({FIRST_NEW_ORDER}, {CUSTOMERS}) AS o;\n",
        carrier = between(1, 10),
        lines = between(LINES.0, LINES.1),
        item = between(1, ITEMS),
        amount = hundredths(1, 999_999),
        info = letters(24),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_within_range_and_differ() {
        let one = session(1);
        assert_ne!(one, session(2));
        assert!(one.contains("setseed(0.00000000023"), "{one}");
        assert!(session(u32::MAX).contains("setseed(1.0"));
    }
}
