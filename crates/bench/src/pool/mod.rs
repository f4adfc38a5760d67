//! A pool of read nodes behind a real HAProxy, with clients that know what they should see.
//!
//! | module | what |
//! |---|---|
//! | [`ledger`] | what writers have committed when, and how old a read was |
//! | [`nodes`] | a primary, its standbys, and an agent beside each |
//! | [`stock`] | the checks that pools have without Lockstep |
//! | [`proxy`] | HAProxy, and new sessions through it |
//! | [`clients`] | writers, and readers with a new session for each read |
//! | [`trouble`] | what happens to standbys, and when |
//! | [`bounded`] | reads on new sessions while standbys are in trouble |
//! | [`tokens`] | reads of what was just written, while primaries change |
//! | [`token_cost`] | what tokens cost the primary |
//! | [`newcomer`] | a new node, and how soon it is as fast as the others |
//! | [`fleet`] | what the agents of many nodes cost |
//! | [`scale`] | reads through one, two and four nodes |

pub mod bounded;
pub mod clients;
pub mod fleet;
pub mod ledger;
pub mod newcomer;
pub mod nodes;
pub mod proxy;
pub mod scale;
pub mod stock;
pub mod token_cost;
pub mod tokens;
pub mod trouble;
