//! What is looked at before anything is changed.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what both servers say, as plain data |
//! | [`collect`] | the queries that find it |
//! | [`rules`] | what follows from it: findings, without I/O |

pub mod collect;
pub mod facts;
pub mod rules;

#[cfg(test)]
mod tests;
