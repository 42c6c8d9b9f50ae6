//! The address of dcgm-exporter on this node.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

const HTTP: u16 = 80;

/// The URL of a service on this machine: a numeric loopback address and a path. Names are not accepted, because they
/// are looked up in files and servers that others may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExporterUrl {
    address: SocketAddr,
    path: String,
}

impl ExporterUrl {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for ExporterUrl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix("http://").ok_or(())?;
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let address = address(host).ok_or(())?;
        let is_plain = match address {
            SocketAddr::V4(_) => true,
            SocketAddr::V6(v6) => v6.scope_id() == 0,
        };
        let is_right = is_plain && address.ip().is_loopback() && address.port() > 0;
        let url = ExporterUrl {
            address,
            path: path.to_owned(),
        };
        let is_one_line = path.chars().all(|c| c.is_ascii_graphic());
        (is_right && is_one_line).then_some(url).ok_or(())
    }
}

/// An address with or without a port; an IPv6 address stands in brackets.
fn address(host: &str) -> Option<SocketAddr> {
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let bare = match in_brackets {
        Some(inside) => inside.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    };
    let with_port = || host.parse().ok();
    bare.map(|ip| SocketAddr::new(ip, HTTP)).or_else(with_port)
}

impl fmt::Display for ExporterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<String> {
        let url: ExporterUrl = text.parse().ok()?;
        Some(url.to_string())
    }

    #[test]
    fn loopback_addresses_in_figures_are_taken() {
        for (text, url) in [
            (
                "http://127.0.0.1:9400/metrics",
                "http://127.0.0.1:9400/metrics",
            ),
            ("http://127.8.9.10:1", "http://127.8.9.10:1/"),
            ("http://127.0.0.1/m?a=b", "http://127.0.0.1:80/m?a=b"),
            ("http://[::1]:9400/metrics", "http://[::1]:9400/metrics"),
            ("http://[::1]/", "http://[::1]:80/"),
            ("http://[::1]", "http://[::1]:80/"),
        ] {
            assert_eq!(read(text).as_deref(), Some(url), "{text}");
        }
    }

    #[test]
    fn names_and_other_machines_are_not() {
        for text in [
            "http://localhost:9400/metrics",
            "http://gn01:9400/metrics",
            "http://10.0.0.1:9400/metrics",
            "http://0.0.0.0:9400/metrics",
            "http://[::]:9400/metrics",
            "http://[::ffff:127.0.0.1]:9400/metrics",
            "http://[::1%2]:9400/metrics",
            "http://::1/metrics",
            "http://127.0.0.1:9400@10.0.0.1/metrics",
            "http://127.1:9400/metrics",
            "http://2130706433:9400/metrics",
            "http://0177.0.0.1:9400/metrics",
            "http://127.0.0.1.example.org:9400/metrics",
            "http://127.0.0.1:0/metrics",
            "http://127.0.0.1:65536/metrics",
            "http://127.0.0.1:/metrics",
            "http://127.0.0.1:9400?metrics",
            "https://127.0.0.1:9400/metrics",
            "HTTP://127.0.0.1:9400/metrics",
            "127.0.0.1:9400",
            "http://127.0.0.1:9400/a b",
            "http://127.0.0.1:9400/\r\nHost: x",
            "http://",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn accepted_addresses_are_of_this_machine(text in "(http://)?[\\[\\]:./%@a1270l]{0,24}") {
            if let Ok(url) = text.parse::<ExporterUrl>() {
                prop_assert!(url.address().ip().is_loopback());
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
