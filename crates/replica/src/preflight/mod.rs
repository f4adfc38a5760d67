//! What is looked at before anything is changed.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what both servers say, as plain data |
//! | [`collect`] | the queries that find it |
//! | [`excluded`] | the query that finds what needs something that is left out |
//! | [`subsets`] | the queries about tables with a row filter or a column list |
//! | [`references`] | the query about foreign keys that these touch |
//! | [`rules`] | what follows from it: findings, without I/O |
//! | [`subset_rules`] | those about row filters and column lists |

pub mod collect;
pub mod excluded;
pub mod facts;
pub mod references;
pub mod rules;
pub mod subset_rules;
pub mod subsets;

#[cfg(test)]
mod tests;
