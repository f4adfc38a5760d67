//! Host names that requests may ask for.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header;

/// Host names that requests may ask for; None allows any.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts(Option<Vec<String>>);

impl Hosts {
    /// Hosts of a listener on the loopback: this machine's names, the address that was given, and `allowed`.
    /// Elsewhere: any name, or only `allowed` and the address if names are given.
    pub fn of(address: SocketAddr, listen: &str, allowed: &[String]) -> Self {
        let is_loopback = address.ip().is_loopback();
        if !is_loopback && allowed.is_empty() {
            return Self(None);
        }
        let mut names = vec![address.ip().to_string(), listen.to_owned()];
        if is_loopback {
            names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        }
        names.extend(allowed.iter().cloned());
        for name in &mut names {
            name.make_ascii_lowercase();
        }
        Self(Some(names))
    }

    /// Whether a header `Host`, with or without a port, has an allowed name.
    fn allow(&self, host: &str) -> bool {
        let Some(names) = &self.0 else {
            return true;
        };
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        // The same IPv6 address can be written in several ways.
        let same = |ours: &String| {
            *ours == name
                || ours
                    .parse::<IpAddr>()
                    .is_ok_and(|ours| name.parse() == Ok(ours))
        };
        names.iter().any(same)
    }

    /// A request without a host name comes from no browser, and is allowed.
    pub(crate) fn allow_request(&self, request: &Request) -> bool {
        let named = request.headers().get_all(header::HOST).iter();
        let mut hosts = named.map(|host| host.to_str().unwrap_or("?"));
        let target = request.uri().host();
        hosts.all(|host| self.allow(host)) && target.is_none_or(|host| self.allow(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_loopback_only_our_own_names_are_answered() {
        let hosts = Hosts::of(
            "127.0.0.1:9871".parse().unwrap(),
            "127.0.0.1",
            &["Proxy.example".to_owned()],
        );
        for (host, allowed) in [
            ("localhost", true),
            ("LOCALHOST:9871", true),
            ("localhost.:1", true),
            ("127.0.0.1:9871", true),
            ("[::1]:9871", true),
            ("[0:0:0:0:0:0:0:1]", true),
            ("proxy.example", true),
            ("", false),
            ("evil.example", false),
            ("evil.example:9871", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("127.0.0.2", false),
            ("[::1", false),
            ("?", false),
        ] {
            assert_eq!(hosts.allow(host), allowed, "{host}");
        }
    }

    #[test]
    fn elsewhere_any_name_is_or_those_that_are_allowed() {
        let address = "192.0.2.1:9871".parse().unwrap();
        assert!(Hosts::of(address, "0.0.0.0", &[]).allow("anything"));
        let named = Hosts::of(address, "db1", &["lag.example".to_owned()]);
        for (host, allowed) in [
            ("lag.example", true),
            ("db1:9871", true),
            ("192.0.2.1:9871", true),
            ("localhost", false),
            ("evil.example", false),
        ] {
            assert_eq!(named.allow(host), allowed, "{host}");
        }
    }
}
