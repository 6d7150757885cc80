//! The decisions of the gateway, in values only: which principals are current, which connections exist and which must end,
//! request rates, due log lines.

pub mod admission;
pub mod connections;
pub mod offenders;
pub mod rate;
pub mod roots;

use std::net::{IpAddr, Ipv6Addr};

/// The source of a connection for the limits: an IPv4 address, or the /64 network of an IPv6 address (one host usually
/// owns a whole /64, and could otherwise count as 2^64 sources).
pub fn source_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !(u128::from(u64::MAX)))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_network_is_one_source_and_mapped_ipv4_is_ipv4() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(source_of(ip("2001:db8::1")), source_of(ip("2001:db8::ffff:2")));
        assert_ne!(source_of(ip("2001:db8::1")), source_of(ip("2001:db8:0:1::1")));
        assert_eq!(source_of(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
    }
}
