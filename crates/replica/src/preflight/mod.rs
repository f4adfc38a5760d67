//! What is looked at before anything is changed.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what both servers say, as plain data |
//! | [`collect`] | the queries that find it |
//! | [`excluded`] | the query that finds what needs something that is left out |
//! | [`rules`] | what follows from it: findings, without I/O |

pub mod collect;
pub mod excluded;
pub mod facts;
pub mod rules;

#[cfg(test)]
mod tests;
