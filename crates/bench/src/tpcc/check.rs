//! The twelve consistency conditions (clause 3.3.2), each one query that counts the rows
//! that violate it.
//!
//! All run in one read-only transaction with one snapshot, so that they can be checked
//! under load, and on a standby that is replaying. An orphan, a row whose parent is
//! missing, counts as a violation too wherever the condition compares the two.

use super::TpccError;
use super::load::Probe;
use super::tools::Tools;
use crate::Result;

/// A condition and its query.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Last part of the clause's number, 3.3.2.x.
    pub number: u32,
    /// The condition in our own words.
    pub name: &'static str,
    /// One row with one count.
    sql: &'static str,
}

/// What came of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Clause of the specification.
    pub clause: String,
    /// The condition, in our own words.
    pub name: &'static str,
    /// Rows (of the table or the groups that it is about) that violate it.
    pub violations: u64,
}

/// All twelve, in the specification's order.
pub const CONDITIONS: [Definition; 12] = [
    Definition {
        number: 1,
        name: "a warehouse's year-to-date total is the sum of its districts'",
        sql: "SELECT count(*) FROM tpcc.warehouse
              FULL JOIN (SELECT d_w_id, sum(d_ytd) AS total FROM tpcc.district GROUP BY 1) AS d
                ON d_w_id = w_id
              WHERE w_ytd IS DISTINCT FROM total",
    },
    Definition {
        number: 2,
        name: "a district's next order number follows its newest order, undelivered or not",
        sql: "SELECT count(*) FROM tpcc.district
              FULL JOIN (SELECT o_w_id, o_d_id, max(o_id) AS newest FROM tpcc.orders GROUP BY 1, 2) AS o
                ON o_w_id = d_w_id AND o_d_id = d_id
              LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS undelivered
                         FROM tpcc.new_order GROUP BY 1, 2) AS n
                ON no_w_id = d_w_id AND no_d_id = d_id
              WHERE d_next_o_id - 1 IS DISTINCT FROM newest
                 OR coalesce(undelivered, newest) IS DISTINCT FROM newest",
    },
    Definition {
        number: 3,
        name: "a district's undelivered orders have consecutive numbers",
        sql: "SELECT count(*) FROM
                (SELECT FROM tpcc.new_order GROUP BY no_w_id, no_d_id
                 HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)) AS broken",
    },
    Definition {
        number: 4,
        name: "a district's orders announce as many lines as there are",
        sql: "SELECT count(*) FROM
                (SELECT o_w_id AS w, o_d_id AS d, sum(o_ol_cnt) AS announced
                 FROM tpcc.orders GROUP BY 1, 2) AS o
              FULL JOIN (SELECT ol_w_id AS w, ol_d_id AS d, count(*) AS lines
                         FROM tpcc.order_line GROUP BY 1, 2) AS l USING (w, d)
              WHERE announced IS DISTINCT FROM lines",
    },
    Definition {
        number: 5,
        name: "an order lacks a carrier exactly while it is listed as undelivered",
        sql: "SELECT count(*) FROM tpcc.orders
              FULL JOIN tpcc.new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
              WHERE o_id IS NULL OR (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    },
    Definition {
        number: 6,
        name: "an order has as many lines as it announces",
        sql: "SELECT count(*) FROM tpcc.orders
              FULL JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS lines
                         FROM tpcc.order_line GROUP BY 1, 2, 3) AS l
                ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
              WHERE o_ol_cnt IS DISTINCT FROM lines",
    },
    Definition {
        number: 7,
        name: "an order's lines have a delivery date exactly when it has a carrier",
        sql: "SELECT count(*) FROM tpcc.order_line
              LEFT JOIN tpcc.orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
              WHERE o_id IS NULL OR (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
    },
    Definition {
        number: 8,
        name: "a warehouse's year-to-date total is the sum of the payments there",
        sql: "SELECT count(*) FROM tpcc.warehouse
              FULL JOIN (SELECT h_w_id, sum(h_amount) AS paid FROM tpcc.history GROUP BY 1) AS h
                ON h_w_id = w_id
              WHERE w_ytd IS DISTINCT FROM paid",
    },
    Definition {
        number: 9,
        name: "a district's year-to-date total is the sum of the payments there",
        sql: "SELECT count(*) FROM tpcc.district
              FULL JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS paid
                         FROM tpcc.history GROUP BY 1, 2) AS h
                ON h_w_id = d_w_id AND h_d_id = d_id
              WHERE d_ytd IS DISTINCT FROM paid",
    },
    Definition {
        number: 10,
        name: "a customer's balance is what was delivered less what was paid",
        sql: "SELECT count(*) FROM tpcc.customer
              LEFT JOIN (SELECT o_w_id AS c_w_id, o_d_id AS c_d_id, o_c_id AS c_id, sum(ol_amount) AS delivered
                         FROM tpcc.orders JOIN tpcc.order_line
                           ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
                         WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) AS d
                USING (c_w_id, c_d_id, c_id)
              LEFT JOIN (SELECT h_c_w_id AS c_w_id, h_c_d_id AS c_d_id, h_c_id AS c_id, sum(h_amount) AS paid
                         FROM tpcc.history GROUP BY 1, 2, 3) AS h
                USING (c_w_id, c_d_id, c_id)
              WHERE c_balance <> coalesce(delivered, 0) - coalesce(paid, 0)",
    },
    Definition {
        number: 11,
        name: "a district's delivered orders are those loaded so and those its customers count",
        sql: "SELECT count(*) FROM tpcc.district
              LEFT JOIN (SELECT o_w_id AS d_w_id, o_d_id AS d_id, count(*) AS placed
                         FROM tpcc.orders GROUP BY 1, 2) AS o USING (d_w_id, d_id)
              LEFT JOIN (SELECT no_w_id AS d_w_id, no_d_id AS d_id, count(*) AS undelivered
                         FROM tpcc.new_order GROUP BY 1, 2) AS n USING (d_w_id, d_id)
              LEFT JOIN (SELECT c_w_id AS d_w_id, c_d_id AS d_id, sum(c_delivery_cnt) AS counted
                         FROM tpcc.customer GROUP BY 1, 2) AS c USING (d_w_id, d_id)
              WHERE coalesce(placed, 0) - coalesce(undelivered, 0) <> 2100 + coalesce(counted, 0)",
    },
    Definition {
        number: 12,
        name: "a customer's balance and payments together are what was delivered",
        sql: "SELECT count(*) FROM tpcc.customer
              LEFT JOIN (SELECT o_w_id AS c_w_id, o_d_id AS c_d_id, o_c_id AS c_id, sum(ol_amount) AS delivered
                         FROM tpcc.orders JOIN tpcc.order_line
                           ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
                         WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) AS d
                USING (c_w_id, c_d_id, c_id)
              WHERE c_balance + c_ytd_payment <> coalesce(delivered, 0)",
    },
];

/// Checks all twelve conditions, on a primary or a standby.
pub fn check(tools: &Tools, conninfo: &str) -> Result<Vec<Condition>> {
    check_only(tools, conninfo, &CONDITIONS)
}

/// Checks some conditions.
pub fn check_only(tools: &Tools, conninfo: &str, wanted: &[Definition]) -> Result<Vec<Condition>> {
    Probe::of(tools, conninfo)?.refuse_not_loaded()?;
    let answer = tools.psql(conninfo, "checking the conditions", &queries(wanted))?;
    let counts: Vec<_> = answer.lines().map(|line| line.trim().parse()).collect();
    if counts.len() != wanted.len() {
        return Err(unexpected(&answer).into());
    }
    wanted
        .iter()
        .zip(counts)
        .map(|(definition, count)| {
            Ok(Condition {
                clause: format!("3.3.2.{}", definition.number),
                name: definition.name,
                violations: count.map_err(|_| unexpected(&answer))?,
            })
        })
        .collect()
}

fn queries(wanted: &[Definition]) -> String {
    let mut sql = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;\n".to_owned();
    for definition in wanted {
        sql.push_str(definition.sql);
        sql.push_str(";\n");
    }
    sql + "COMMIT;\n"
}

fn unexpected(answer: &str) -> TpccError {
    TpccError::Answer {
        program: "psql",
        answer: lockstep_lab::error::one_line(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_are_numbered_and_only_read() {
        for (index, definition) in CONDITIONS.iter().enumerate() {
            assert_eq!(definition.number as usize, index + 1);
            assert!(definition.sql.starts_with("SELECT count(*) FROM"));
            assert!(!definition.sql.contains(';'));
        }
        let sql = queries(&CONDITIONS);
        assert!(sql.starts_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;"));
        assert_eq!(sql.matches(';').count(), 14);
    }
}
