//! Pages over HTTP, and requests for those of others.
//!
//! | module | what |
//! |---|---|
//! | [`bounded`] | limits on connections |
//! | [`pages`] | metrics and a health check, without a login |
//! | [`auth`] | names and passwords |
//! | [`door`] | passwords, certificate and key, from files that can be reloaded |
//! | [`hosts`] | host names that requests may ask for |
//! | [`client`] | asks other servers |
//! | [`checks`] | checks of a proxy |
//! | [`server`] | which requests are answered, with login, TLS and limits |

pub mod auth;
pub mod bounded;
pub mod checks;
pub mod client;
pub mod door;
pub mod hosts;
pub mod pages;
pub mod server;
